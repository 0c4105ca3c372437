"""Whole configs of other training systems: imported with their defaults written out, and exported.

Each key of a file gets one verdict with its reason: it acts the same here, it has no effect on the run, or it
cannot be kept. ``arguments/`` holds the systems' argument names and defaults, read from their wheels by
``dev/research/argument_tables.py``.
"""
