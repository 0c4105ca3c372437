"""Strict JSON for rows: no NaN, no duplicate keys, no numbers beyond float range, limited nesting."""

from __future__ import annotations

import json
import math
from typing import NoReturn

from paceline.core.json_types import Json, unique_keys

MAX_DEPTH = 64  # of objects and lists in one row; published data sets need at most seven


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is beyond the largest number")
    return number


DECODER = json.JSONDecoder(object_pairs_hook=unique_keys, parse_constant=_no_constant, parse_float=_finite)


def parse_row(text: str) -> Json:
    """Parse a line. Raises ValueError or RecursionError with what is wrong."""
    value = DECODER.decode(text)
    check_value(value, text)
    return value


def check_value(value: Json, text: str) -> None:
    """Check a value parsed from ``text``.

    Raises RecursionError if it is nested deeper than MAX_DEPTH, ValueError for a key that cannot be encoded.
    """
    deep = text.count("{") + text.count("[") > MAX_DEPTH  # few brackets cannot nest deeply
    halves = "\\ud" in text or "\\uD" in text  # half of a surrogate pair needs such an escape
    if not deep and not halves:
        return
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        if halves:
            for node in level:
                _writable(node)
        level = [
            c
            for node in level
            if isinstance(node, (dict, list))
            for c in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return
    raise RecursionError


def _writable(node: Json) -> None:
    try:
        for key in node if isinstance(node, dict) else ():
            key.encode()
    except UnicodeEncodeError:
        raise ValueError("a key contains half of a surrogate pair") from None
