"""Checkpoints of other programs, read and written: DCP, DeepSpeed, Accelerate, Transformers' Trainer."""
