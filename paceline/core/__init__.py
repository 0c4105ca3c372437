"""What every room uses: errors, diagnostics, the registry, the run directory. Standard library only."""
