"""Read pickles without running code, in a sandboxed child process."""
