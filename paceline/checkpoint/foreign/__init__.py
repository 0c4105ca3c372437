"""Checkpoints of other programs: pickles read by a machine that runs no code, in a child that is shut in."""
