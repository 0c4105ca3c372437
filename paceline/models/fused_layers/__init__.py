"""Layers as one autograd function each: norms, gated MLPs, rotary queries and keys."""
