"""Turns that a column holds as text: CSV has no lists, and some publish JSON within JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from paceline.data.cells import Cell, RawRow
from paceline.data.strict import parse_row

#: Columns whose text may be turns.
_COLUMNS = (
    *("messages", "conversations", "prompt", "question", "query", "problem", "instruction"),
    *("completion", "response", "output", "answer", "chosen", "rejected", "rejected_messages"),
)
_PAIRS = ({"role", "content"}, {"from", "value"}, {"role", "tool_calls"})
_BEGINS = re.compile(r"""\s*(?:\[\s*)?\{\s*(["'])(?:role|from|content|value)\1\s*:""")


def parsed_turns(rows: Iterable[RawRow], mapping: Mapping[str, str]) -> Iterator[RawRow]:
    """Yield the rows with turns in place of texts that are turns; one that begins so and is none is named."""
    names = (*_COLUMNS, *mapping.values())
    for row in rows:
        texts = (
            {name: row.value[name] for name in names if isinstance(row.value.get(name), str)}
            if row.value
            else {}
        )
        if row.value is None or not any(_BEGINS.match(str(text)) for text in texts.values()):
            yield row
            continue
        found: dict[str, Cell] = {}
        for name, text in texts.items():
            if (quote := _BEGINS.match(str(text))) is None:
                continue
            try:
                turns = parse_row(str(text))
            except (ValueError, RecursionError):
                python = " (it is Python's notation; write JSON)" if quote[1] == "'" else ""
                detail = (
                    f"'{name}' is a text that begins like turns and is not JSON{python}: {str(text)[:40]!r}"
                )
                row = row._replace(value=None, reason="bad_messages", detail=detail)
                break
            if all(map(_is_turn, turns if isinstance(turns, list) else [turns])):
                found[name] = turns
        yield row if row.value is None else row._replace(value={**row.value, **found})


def _is_turn(value: Cell) -> bool:
    return isinstance(value, Mapping) and any(keys <= set(value) for keys in _PAIRS)
