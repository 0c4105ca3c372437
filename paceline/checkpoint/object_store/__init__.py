"""Checkpoints in object storage: uploaded beside training, committed by a conditional create. No torch."""
