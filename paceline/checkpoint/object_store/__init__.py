"""Checkpoints in object storage: uploaded during training, committed by a conditional create. No torch."""
