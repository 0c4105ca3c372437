"""The next token from logits, with noise that depends on stream and position alone."""
