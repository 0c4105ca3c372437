"""Start a node's processes, watch them, and say how each of them ended."""
