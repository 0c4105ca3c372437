"""Logs of any trainer, read for the first cause of a failure."""
