"""Files that nearly are of their format: what is wrong in them, and how to write it."""

from __future__ import annotations

from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.data import codes
from paceline.data.sources.compressed_files import open_rows
from paceline.data.sources.json_rows import DECODER

_LOOKED_AT = 1 << 22  # characters of a file in which the first object must end


def objects_over_lines(file: Path) -> Diagnostic | None:
    """Return the finding about objects one after the other, of which the first takes several lines; None for
    any other text.
    """
    with open_rows(file) as stream:
        text = stream.read(_LOOKED_AT).lstrip()
    try:
        value, end = DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    after = text[end:].lstrip()[:1]
    if not isinstance(value, dict) or "\n" not in text[:end] or after not in ("{", ",", ""):
        return None
    hint = f"write one object per line: jq -c . {file.name} > rows.jsonl"
    if after == ",":
        hint = "write [ before the first object and ] after the last (.json)"
    what = (
        "objects stand one after the other, each over several lines; a line, or an object of a list, is a row"
    )
    return codes.DATA_NOT_JSON(what, f"{file}:1", f"keys {', '.join(list(value)[:8])}", hint)


def wrong_csv(where: str, complaint: str) -> Diagnostic:
    """Return the finding about a record of a CSV file that Python's csv refuses with ``complaint``."""
    if "expected after" in complaint:
        what = "a quote stands within a value in quotes, and is not doubled"
        return codes.DATA_NOT_CSV(what, where, complaint, 'write it twice: "she said ""yes"" and left"')
    if "unexpected end of data" in complaint:
        what = "a value begins with a quote, and no quote ends it"
        return codes.DATA_NOT_CSV(what, where, complaint, "end the value with a quote, or remove the first")
    hint = "quote values that contain commas or line breaks, or use JSONL or Parquet"
    return codes.DATA_NOT_CSV("the file is not CSV", where, complaint, hint)
