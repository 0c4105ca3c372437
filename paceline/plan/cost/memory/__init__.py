"""The memory of a rank, term by term."""
