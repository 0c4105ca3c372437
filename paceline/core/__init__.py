"""Shared basics: errors, diagnostics, the registry, the run directory. Standard library only."""
