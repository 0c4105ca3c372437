"""A model's folder, checked without loading it."""
