"""Start a node's processes, watch them, and record how each ended."""
