"""Detect files named .txt or .csv that hold other formats: JSON would be trained on with braces and keys."""

from __future__ import annotations

import json
import re
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.data import codes
from paceline.data.rows.formats import COLUMNS, PAIRS
from paceline.data.rows.values import Cell
from paceline.data.sources.compressed_files import open_bytes
from paceline.data.sources.file_kinds import kind_of

_LOOKED_AT = 1 << 16  # bytes
_LINES = 20
_SEMICOLONS = "a table with semicolons"
_HEADERS = (
    [frozenset(must) for must, _ in COLUMNS.values() if len(must) > 1]
    + [frozenset(p) for p in PAIRS]
    + [frozenset(("chosen", "rejected"))]
)


def disguised(file: Path) -> Diagnostic | None:
    """Return the finding for a .txt or .csv file that holds another format; None if it is as named.

    Raises OSError.
    """
    with open_bytes(file) as stream:
        start = stream.read(_LOOKED_AT).decode("utf-8-sig", "ignore")
    kind = _kind(start)
    if kind is None or kind_of(file) == kind[0]:
        return None
    suffix, name = kind
    return codes.DATA_DISGUISED(
        f"{file}:1",
        repr(start.strip()[:60]),
        suffix=file.suffix,
        name=name,
        hint=f'use a name that ends in .{suffix}; to train on such text as it is, put rows {{"text":'
        " …} in a .jsonl file",
    )


def _kind(start: str) -> tuple[str, str] | None:
    """Return (suffix, name) of the format that a text beginning like this has; None if it is plain text."""
    text = start.lstrip()
    lines = [line for line in start.splitlines() if line.strip()]
    whole = lines[:_LINES] if len(start) < _LOOKED_AT else lines[:-1][:_LINES]  # the last may be incomplete
    if whole and all(_is_object(line) for line in whole):
        return "jsonl", "JSON lines"
    if re.match(r'\[\s*(\{\s*"|\])', text) or re.match(r'\{\s*\n\s*"[^"\n]*"\s*:', text):
        return "json", "JSON"
    for mark, kind, name in (
        (",", "csv", "CSV"),
        ("\t", "tsv", "a table with tabs"),
        (";", "csv", _SEMICOLONS),
    ):
        header = {part.strip().strip('"').lower() for part in lines[0].split(mark)} if lines else set()
        if any(needed <= header for needed in _HEADERS):
            return kind, name
    return None


def _is_object(line: str) -> bool:
    if not line.lstrip().startswith("{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def frame_orientation(value: Cell) -> str:
    """Return the ``orient`` with which pandas' ``DataFrame.to_json`` writes such an object; "" for a row."""
    if not isinstance(value, dict) or not value:
        return ""
    if isinstance(value.get("data"), list):
        schema = value.get("schema")
        if value.keys() == {"schema", "data"} and isinstance(schema, dict) and "fields" in schema:
            return "table"
        if value.keys() == {"columns", "index", "data"} and isinstance(value["columns"], list):
            return "split"
    inner = [set(item) for item in value.values() if isinstance(item, dict)]
    if len(inner) < len(value) or not inner[0]:
        return ""
    if value.keys() <= {str(n) for n in range(len(value))}:
        return "index"
    return "columns" if all(keys == {str(n) for n in range(len(inner[0]))} for keys in inner) else ""
