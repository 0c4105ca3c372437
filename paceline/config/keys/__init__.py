"""Names of keys: aliases, other programs' names, the nearest one, and keys without effect here."""
