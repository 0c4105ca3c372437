"""Slurm: a batch script, and jobs asked and stopped by its commands."""
