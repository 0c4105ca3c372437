"""Say how rows that match no format nearly match one: names spelt otherwise, rows within one object."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.data import codes
from paceline.data.rows.formats import Shape
from paceline.data.rows.values import Row
from paceline.data.sources.file_kinds import kind_of

Detect = Callable[[Sequence[Row]], Shape]


def near_shapes(rows: Sequence[Row], detect: Detect, where: str) -> Iterator[Diagnostic]:
    """Yield what would make ``detect`` find a shape of the rows, the likeliest first."""
    found = list(dict.fromkeys(name for row in rows for name in row))
    seen = f"columns {', '.join(found) or 'none'}"
    if respelt := _respelt(rows, found, detect):
        what = "the rows match a format but for how their columns are spelt"
        listed = ", ".join(f"{name}: {_plain(own)}" for name, own in respelt.items())
        yield codes.DATA_FORMAT_UNKNOWN(what, where, seen, f"columns: {{{listed}}} (next to path:)")
    for name in found if len(rows) == 1 else ():
        inner = rows[0].get(name)
        if isinstance(inner, list) and inner and all(isinstance(row, Mapping) for row in inner):
            inside = [row for row in inner if isinstance(row, Mapping)]
            if _shape(inside, detect) is not None:
                what = f"the rows stand in a list '{name}' within one object"
                hint = f"write one row per line: jq -c '.\"{name}\"[]' {Path(where).name} > rows.jsonl"
                yield codes.DATA_NOT_A_LIST(what, where, seen, hint)
    if kind_of(Path(where)) in ("csv", "tsv") and any(" " in name.strip() for name in found):
        what = "the first line of the file names no columns of a format; it may be a row"
        hint = "put a line with the names of the columns before the rows, such as prompt,completion"
        yield codes.DATA_FORMAT_UNKNOWN(what, where, seen, hint)


def _respelt(rows: Sequence[Row], found: Sequence[str], detect: Detect) -> dict[str, str]:
    """Return the format's columns by the file's names, if letters' case and blanks alone part them."""
    plain = {name: "_".join(name.replace("-", " ").lower().split()) for name in found}
    if len(set(plain.values())) < len(found):
        return {}
    shape = _shape([{plain[name]: value for name, value in row.items()} for row in rows], detect)
    own = {new: old for old, new in plain.items()}
    columns = shape.columns if shape is not None else {}
    # ``columns:`` takes the format's own names: those of alternatives (question, answer) are the file's
    return {name: own[new] for name, new in columns.items() if new in own and own[new] != name}


def _shape(rows: Sequence[Row], detect: Detect) -> Shape | None:
    try:
        return detect(rows)
    except DataError:
        return None


def _plain(name: str) -> str:
    """Return a name as YAML has it within braces."""
    is_word = name.replace("_", "").isalnum() and name.isascii()
    return name if is_word else json.dumps(name, ensure_ascii=False)
