"""Answers from a model: batched and greedy, and a conversation in the terminal."""
