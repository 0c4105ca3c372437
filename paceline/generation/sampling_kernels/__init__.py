"""Sampling of the next tokens in Triton, as torch operators: three kernels for any batch."""
