"""Decoding token by token: growing caches, preallocated caches, and steps captured as a graph."""
