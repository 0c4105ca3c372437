"""Simulation: the run's own model and strategy on tensors without storage, in a world of any size, in one
process.
"""
