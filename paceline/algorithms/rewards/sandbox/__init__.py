"""Programs of others, shut in. Standard library alone: a server of this package starts in milliseconds and holds nothing worth reading."""
