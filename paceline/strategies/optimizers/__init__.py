"""Optimizers by Transformers' names, their quantized state, and those that are written here."""
