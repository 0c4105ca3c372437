"""The command line: one small module per verb, imported when called; torch runs in processes it starts."""
