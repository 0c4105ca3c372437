"""Plots of runs and forecasts. Reads run directories only; imports no torch."""
