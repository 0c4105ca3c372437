"""LLaMA-Factory's configs."""
