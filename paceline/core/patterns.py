"""Whether a text is meant as a regular expression."""

from __future__ import annotations

_MARKS = frozenset("()[]{}|*+?^$\\")


def is_pattern(text: str) -> bool:
    """True when ``text`` has a character that no module's name has and regular expressions are made of (a dot does not count)."""
    return any(mark in text for mark in _MARKS)
