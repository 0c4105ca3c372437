"""Launchers (``launchers.LAUNCHERS``), checks before a start, and supervision. No torch."""
