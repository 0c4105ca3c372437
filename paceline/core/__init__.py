"""Words that every room shares: errors, diagnostics, the registry, the run directory. Standard library only."""
