"""Models as described by their files: shapes, parameter counts, families, weight files. No torch."""
