"""``paceline doctor``: check this machine for training, and report problems. No torch."""
