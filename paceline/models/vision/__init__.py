"""Models that are trained with their vision tower."""
