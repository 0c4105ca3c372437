"""Attention over packed documents: kernels, the choice of a model's kernel, and context parallelism."""
