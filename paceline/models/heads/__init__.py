"""Heads: logits of labelled positions, log-probabilities, scores, and losses computed from them."""
