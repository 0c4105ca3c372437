"""Pickles read by a machine that runs no code, in a child that is shut in."""
