"""Simulation: run the real model and strategy in one process without storage, for any world size."""
