"""Looks at data and tokenizer before a start."""
