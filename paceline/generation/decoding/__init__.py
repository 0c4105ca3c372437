"""Token by token: growing caches, preallocated ones, and steps captured as a graph."""
