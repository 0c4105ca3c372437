"""The tokenizer of a model's folder, and facts of its files."""
