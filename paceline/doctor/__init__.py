"""``paceline doctor``: what this machine has for a training and what stands in its way. No torch."""
