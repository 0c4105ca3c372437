"""Find files whose content does not match the format in their name.

JSON in a .txt file would be trained on with its braces and keys.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.data import codes
from paceline.data.rows.formats import COLUMNS, PAIRS
from paceline.data.rows.values import Cell
from paceline.data.sources.file_kinds import kind_of, open_bytes, open_rows
from paceline.data.sources.json_rows import DECODER

_FIRST_OBJECT = 1 << 22  # characters of a file in which the first object must end
_START = 1 << 16  # bytes by which a format is told
_LINES = 20
_HEADERS = (
    [frozenset(must) for must, _ in COLUMNS.values() if len(must) > 1]
    + [frozenset(p) for p in PAIRS]
    + [frozenset(("chosen", "rejected"))]
)


def objects_over_lines(file: Path) -> Diagnostic | None:
    """Return the finding about consecutive JSON objects that span several lines; None for any other text."""
    with open_rows(file) as stream:
        text = stream.read(_FIRST_OBJECT).lstrip()
    try:
        value, end = DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    after = text[end:].lstrip()[:1]
    if not isinstance(value, dict) or "\n" not in text[:end] or after not in ("{", ",", ""):
        return None
    remedy = f"write one object per line: jq -c . {file.name} > rows.jsonl"
    if after == ",":
        remedy = "write [ before the first object and ] after the last (.json)"
    message = (
        "objects stand one after the other, each over several lines; a line, or an object of a list, is a row"
    )
    return codes.DATA_NOT_JSON(message, f"{file}:1", f"keys {', '.join(list(value)[:8])}", remedy)


_CSV_COMPLAINTS = {  # what Python's csv says -> what is wrong, and how to write it
    "expected after": (
        "a quote stands within a value in quotes, and is not doubled",
        'write it twice: "she said ""yes"" and left"',
    ),
    "unexpected end of data": (
        "a value begins with a quote, and no quote ends it",
        "end the value with a quote, or remove the first",
    ),
    "": ("the file is not CSV", "quote values that contain commas or line breaks, or use JSONL or Parquet"),
}


def wrong_csv(where: str, complaint: str) -> Diagnostic:
    """Return the finding about a record of a CSV file that Python's csv refuses with ``complaint``."""
    message, remedy = next(texts for words, texts in _CSV_COMPLAINTS.items() if words in complaint)
    return codes.DATA_NOT_CSV(message, where, complaint, remedy)


def disguised(file: Path) -> Diagnostic | None:
    """Return the finding for a .txt or .csv file that holds another format; None if it is as named.

    Raises OSError.
    """
    with open_bytes(file) as stream:
        start = stream.read(_START).decode("utf-8-sig", "ignore")
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
    complete = lines[:_LINES] if len(start) < _START else lines[:-1][:_LINES]  # the last may be incomplete
    if complete and all(_is_object(line) for line in complete):
        return "jsonl", "JSON lines"
    if re.match(r'\[\s*(\{\s*"|\])', text) or re.match(r'\{\s*\n\s*"[^"\n]*"\s*:', text):
        return "json", "JSON"
    for mark, kind, name in (
        (",", "csv", "CSV"),
        ("\t", "tsv", "a table with tabs"),
        (";", "csv", "a table with semicolons"),
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
    """Return the ``orient`` of an object written by pandas' ``DataFrame.to_json``; "" for a row."""
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
