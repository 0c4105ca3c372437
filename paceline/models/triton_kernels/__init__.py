"""Row-wise kernels (norms, gated activations, rotary embedding, loss) in Triton, as torch operators."""
