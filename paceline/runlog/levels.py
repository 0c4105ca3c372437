"""Which lines are written to text logs: ``training.log_level`` is the minimum severity."""

from __future__ import annotations

# Names as in Transformers, where `passive` keeps the level and `detail` is debug with file names and lines.
# Errors that end a run are always written.
_RANKS = {
    "detail": 0,
    "debug": 0,
    "note": 1,
    "info": 1,
    "passive": 1,
    "warning": 2,
    "error": 3,
    "critical": 3,
}


def is_written(level: str, least: str) -> bool:
    """Whether a line of ``level`` (a severity, ``info`` or ``debug``) passes the minimum level ``least``."""
    return _RANKS[level] >= _RANKS[least]
