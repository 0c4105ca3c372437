"""Predictions: a rank's peak memory and a step's time in closed form, with calibrated coefficients. No torch, no numpy."""
