"""Checks before a start that load a library: model, data, tokenizer, checkpoint, and a trial of them."""
