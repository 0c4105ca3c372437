"""Convert YAML's plain scalars by YAML 1.2's core schema, also reading ``5e-5`` as a number.

``yes``, ``no``, ``on`` and ``off`` stay texts: boolean fields accept them, and ``eval_strategy: no`` is a
word.
"""

from __future__ import annotations

import re
from typing import TypeAlias

Scalar: TypeAlias = None | bool | int | float | str
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*)$")
_BASED = re.compile(r"0x[0-9a-fA-F]+$|0o[0-7]+$")
_FLOAT = re.compile(r"[-+]?((0|[1-9][0-9_]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?$")
_INFINITE = re.compile(r"[-+]?\.(inf|Inf|INF)$")
_WORDS: dict[str, Scalar] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
# Longer ones take quadratic time in int(), and no setting has them
_MOST_DIGITS = 40


def parse_number(text: str) -> int | float | None:
    """Return the number in ``text``, or None; ``007`` and texts over 40 characters are not numbers."""
    if len(text) > _MOST_DIGITS:
        return None
    if _INT.match(text):
        return int(text)
    if _BASED.match(text):
        return int(text, 0)
    if _FLOAT.match(text):
        return float(text)
    if _INFINITE.match(text):
        return float(text.replace(".", "", 1))
    return float("nan") if text in (".nan", ".NaN", ".NAN") else None


def resolve_plain(text: str) -> Scalar:
    """Return the value of an unquoted scalar: None, bool, int, float or the text itself."""
    if text in _WORDS:
        return _WORDS[text]
    number = parse_number(text)
    return text if number is None else number
