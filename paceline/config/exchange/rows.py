"""A look at the first row of a local data file: what another system reads off the rows, our config says."""

from __future__ import annotations

import json
from pathlib import Path

from paceline.core.files import open_file
from paceline.core.json_types import JsonObject, as_object

_LIMIT = 1 << 20


def first_row(path: str, folder: Path) -> JsonObject:
    """Return the first row of a JSON or JSON-lines file; empty if it is no such file or is too long."""
    file = next((p for p in (Path(path), folder / path) if p.is_file()), None)
    if file is None or file.suffix not in (".json", ".jsonl"):
        return {}
    with open_file(file) as stream:
        text = stream.read(_LIMIT).decode("utf-8", errors="replace")
    start = text.lstrip().removeprefix("[").lstrip()
    try:
        row, _ = json.JSONDecoder().raw_decode(start)
    except ValueError:
        return {}
    return as_object(row)
