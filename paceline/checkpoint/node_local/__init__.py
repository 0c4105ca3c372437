"""Nodes without a shared disk: each keeps its own part of a checkpoint, and missing files are fetched."""
