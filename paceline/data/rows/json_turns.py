"""Turns that a column holds as text: CSV has no lists, and some publish JSON within JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from paceline.data.rows.values import Cell, RawRow, RowError
from paceline.data.sources.json_rows import parse_row

#: Columns whose text may be turns.
_COLUMNS = (
    *("messages", "conversations", "prompt", "question", "query", "problem", "instruction"),
    *("completion", "response", "output", "answer", "chosen", "rejected", "rejected_messages"),
)
_WRAPPED = ("messages", "conversations")
_PAIRS = ({"role", "content"}, {"from", "value"}, {"role", "tool_calls"})
_BEGINS = re.compile(r"""\s*(?:\[\s*)?\{\s*(["'])(?:role|from|content|value|messages|conversations)\1\s*:""")
_KEY = re.compile(r"""(["'])(role|from|content|value|tool_calls)\1\s*:""")


def parsed_turns(rows: Iterable[RawRow], mapping: Mapping[str, str]) -> Iterator[RawRow]:
    """Yield the rows with turns in place of texts that are turns; one that begins so and is none is named."""
    names = (*_COLUMNS, *mapping.values())
    for row in rows:
        found: dict[str, Cell] = {}
        try:
            for name in names:
                value = _parsed(name, row.value.get(name)) if row.value is not None else None
                if value is not None:
                    found[name] = value
        except RowError as error:
            yield row._replace(value=None, reason=error.reason, detail=error.detail)
            continue
        yield row if row.value is None or not found else row._replace(value={**row.value, **found})


def _parsed(name: str, value: Cell) -> Cell:
    """Return the turns that the text ``value`` holds; None for any other value. Raises RowError."""
    read = value
    if isinstance(value, str) and (quote := _BEGINS.match(value)) is not None:
        try:
            read = parse_row(value)
        except (ValueError, RecursionError) as error:
            keys = {key[2] for key in _KEY.finditer(value)}
            if not any(pair <= keys for pair in _PAIRS):
                return None  # an answer that begins with an object of its own: {"value": 5} …
            python = " (it is Python's notation; write JSON)" if quote[1] == "'" else ""
            what = f"'{name}' is a text that begins like turns and is not JSON{python}: {value[:40]!r}"
            raise RowError("bad_messages", what) from error
    for key in _WRAPPED:
        if isinstance(read, Mapping) and _are_turns(read.get(key)):
            what = f"'{name}' is an object with '{key}': write that list as '{name}', and tools as 'tools'"
            raise RowError("bad_messages", what)
    return read if read is not value and _are_turns(read if isinstance(read, list) else [read]) else None


def _are_turns(value: Cell) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_turn, value))


def _is_turn(value: Cell) -> bool:
    return isinstance(value, Mapping) and any(keys <= set(value) for keys in _PAIRS)
