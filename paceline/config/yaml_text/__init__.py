"""The text of a YAML: read with the place of each value, and what is easily mistaken in it."""
