"""Parse YAML text with the place of each value, and find look-alike characters."""
