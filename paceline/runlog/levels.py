"""Which lines are written: ``training.log_level`` names the least severe."""

from __future__ import annotations

# Transformers' words. `passive` leaves the level as it is there, `detail` is debug with places, and what ends a run is never left out.
_RANKS = {"detail": 0, "debug": 0, "note": 1, "info": 1, "passive": 1, "warning": 2, "error": 3, "critical": 3}


def is_written(level: str, least: str) -> bool:
    """Whether a line of ``level`` (a severity, ``info`` or ``debug``) is written where ``least`` is asked for."""
    return _RANKS[level] >= _RANKS[least]
