"""Plots of runs and forecasts, and the page. Reads run directories only; imports no torch."""
