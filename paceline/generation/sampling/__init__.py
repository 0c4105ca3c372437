"""The next token from logits, in torch or Triton, with noise that depends on stream and position alone."""
