"""Heads: logits of labelled positions, log-probabilities, scores, and the losses that are made of them."""
