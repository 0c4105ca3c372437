"""Attention over packed documents: the kernels, which of them a model gets, and context parallelism."""
