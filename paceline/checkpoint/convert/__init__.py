"""Checkpoints of other programs, read and written: torch DCP, DeepSpeed, Accelerate, Transformers' Trainer."""
