"""Checks of data and tokenizer before a start."""
