"""Values of rows, from JSON, Parquet and the datasets library, and their conversion to text or JSON.

JSON is strict: no NaN, no duplicate keys, no numbers beyond float range, limited nesting.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from typing import NamedTuple, NoReturn, TypeAlias

from paceline.core.json_types import Json, unique_keys

#: A value of a row: JSON's, and what Parquet and the datasets library hold beside it.
Cell: TypeAlias = (
    "None | bool | int | float | str | bytes | date | time | timedelta | Decimal"
    " | Sequence[Cell] | Mapping[str, Cell]"
)
Row = Mapping[str, Cell]


class RawRow(NamedTuple):
    """A row as read: ``value`` is the object, or None for the given ``reason``.

    ``consumed``: bytes of all files read so far.
    """

    value: dict[str, Cell] | None
    where: str
    reason: str = ""
    detail: str = ""
    consumed: int = 0


class RowError(Exception):
    """A row does not fit its format; ``reason`` is a key of ``problems.REASONS``, ``also`` further ones with
    their details.
    """

    def __init__(self, reason: str, detail: str = "", also: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail
        self.also = also


def replaced(row: Mapping[str, Cell], texts: Mapping[str, str]) -> dict[str, Cell]:
    """Return a row with these texts replaced in all its texts."""
    return {name: _replaced(value, texts) for name, value in row.items()}


def _replaced(value: Cell, texts: Mapping[str, str]) -> Cell:
    if isinstance(value, str):
        for before, after in texts.items():
            value = value.replace(before, after)
        return value
    if isinstance(value, Mapping):
        return replaced(value, texts)
    return [_replaced(item, texts) for item in value] if isinstance(value, (list, tuple)) else value


def is_empty(value: Cell) -> bool:
    """Whether a field is absent or blank, or all its parts are (Parquet fills all fields of a struct)."""
    if value is None:
        return True
    if isinstance(value, str):
        return value.strip() in ("", "[]", "{}", "null")
    if isinstance(value, Mapping):
        return all(is_empty(item) for item in value.values())
    return isinstance(value, (list, tuple)) and all(is_empty(item) for item in value)


def is_null(value: Cell) -> bool:
    """Whether a value is null, or an object of nulls only, with which a table's schema fills missing
    fields."""
    if isinstance(value, Mapping):
        return bool(value) and all(is_null(item) for item in value.values())
    return value is None


def without_filled(row: dict[str, Cell]) -> dict[str, Cell]:
    """Return a row of a table without the nulls that the table's schema puts into structs.

    Nulls in a turn, a tool or a document are kept: readers treat them as missing.
    """
    nested = (list, dict)
    return {name: _unfilled(item, 0) if isinstance(item, nested) else item for name, item in row.items()}


def _unfilled(value: Cell, depth: int) -> Cell:
    if isinstance(value, list):
        return [_unfilled(item, depth) if isinstance(item, (list, dict)) else item for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _unfilled(item, depth + 1) if isinstance(item, (list, dict)) else item
        for key, item in value.items()
        if depth == 0 or not is_null(item)
    }


def as_text(value: Cell, name: str) -> str:
    """Return the text of a string, a number or text parts. Raises RowError for anything else."""
    if value is None:
        return ""
    if isinstance(value, str):
        if not value.isascii() and not _is_unicode(value):
            raise RowError("not_text", f"'{name}' contains half of a surrogate pair")
        return value
    # Numbers are written as text, except NaN and infinities.
    if isinstance(value, float) and not math.isfinite(value):
        raise RowError("not_finite", f"'{name}' is {value}")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return str(value)
        except ValueError as exc:  # Python formats integers of at most 4,300 digits
            raise RowError("not_text", f"'{name}' is a number with more digits than can be written") from exc
    parts = [part for part in value if isinstance(part, Mapping)] if isinstance(value, list) else []
    texts = [
        text for part in parts if part.get("type") == "text" and isinstance(text := part.get("text"), str)
    ]
    if texts and isinstance(value, list) and len(texts) == len(value):
        return as_text("".join(texts), name)
    raise RowError("not_text", f"'{name}' is {type(value).__name__}")


def as_json(value: Cell, name: str) -> Json:
    """Return a value of JSON's types; dates and the like are refused. Raises RowError."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return as_text(value, name)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise RowError("not_finite", f"'{name}' is {value}")
        return value
    if isinstance(value, Mapping):
        return {as_text(key, name): as_json(item, name) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item, name) for item in value]
    raise RowError("not_text", f"'{name}' is {type(value).__name__}")


def _is_unicode(text: str) -> bool:
    """Whether the text can be encoded: JSON escapes can produce half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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
