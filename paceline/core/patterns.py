"""Tell regular expressions from module names."""

from __future__ import annotations

_MARKS = frozenset("()[]{}|*+?^$\\")


def is_pattern(text: str) -> bool:
    """Whether ``text`` contains a regular-expression metacharacter.

    A dot does not count: module names have it.
    """
    return any(mark in text for mark in _MARKS)
