"""The format and compression of files of rows: by their names, and by a content that contradicts the name."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.core.files import open_file
from paceline.data import codes
from paceline.data.rows.formats import COLUMNS, PAIRS
from paceline.data.rows.values import DECODER, Cell

#: Suffix of a file → its reader.
SUFFIXES = {
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "txt",
}
#: Suffixes of compressed files, after those of ``SUFFIXES``.
COMPRESSED = (".gz", ".zst", ".xz", ".bz2")
_TEXTS = (
    "json",
    "jsonl",
    "csv",
    "tsv",
    "txt",
)  # what is published compressed; the others compress themselves


def kind_of(file: Path) -> str | None:
    """Return the reader of a file (a value of ``SUFFIXES``) by its name; None if it has none."""
    suffixes = [suffix.lower() for suffix in file.suffixes]
    packed = bool(suffixes) and suffixes[-1] in COMPRESSED
    kind = SUFFIXES.get("".join(suffixes[-2:-1] if packed else suffixes[-1:]))
    return kind if not packed or kind in _TEXTS else None


def kinds_in(name: str) -> set[str]:
    """Return the kinds of all suffixes in a name: two for ``a.csv.json``, one for ``a.json.bak``."""
    return {kind for part in name.lower().split(".")[1:] if (kind := SUFFIXES.get(f".{part}"))}


def is_packed(file: Path) -> bool:
    """Whether a file is compressed, by its name."""
    return file.suffix.lower() in COMPRESSED


@contextmanager
def open_bytes(file: Path) -> Iterator[io.BufferedReader]:
    """Open a file for reading, decompressed where its name says so. Raises OSError as ``open_file``."""
    with open_file(file) as stream:
        unpack = _UNPACK.get(file.suffix.lower())
        if unpack is None:
            yield stream
            return
        with unpack(stream) as unpacked:
            yield unpacked


@contextmanager
def open_rows(file: Path) -> Iterator[TextIO]:
    """Open a file as UTF-8 text as ``core.files.open_text``, decompressed where its name says so."""
    with open_bytes(file) as stream, io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
        yield text


def _buffered(stream: io.RawIOBase | io.BufferedIOBase) -> io.BufferedReader:
    return io.BufferedReader(stream)  # type: ignore[type-var]


def _zstd(stream: BinaryIO) -> io.BufferedReader:
    import pyarrow as pa

    return _buffered(pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd"))


# Read as streams: nothing is unpacked onto a disk
_UNPACK: Mapping[str, Callable[[BinaryIO], io.BufferedReader]] = {
    ".gz": lambda stream: _buffered(gzip.GzipFile(fileobj=stream)),
    ".xz": lambda stream: _buffered(lzma.LZMAFile(stream)),  # noqa: SIM115
    ".bz2": lambda stream: _buffered(bz2.BZ2File(stream)),
    ".zst": _zstd,
}


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Inside, errors of opening and reading a file become DataErrors, also for damaged compressed files."""
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if not is_packed(file) or getattr(error, "errno", None) is not None:
            reason = getattr(error, "strerror", None) or str(error)
            raise DataError(codes.DATA_UNREADABLE("the file cannot be read", str(file), reason)) from error
        raise DataError(
            codes.DATA_UNREADABLE(
                "the compressed file is damaged, truncated, or not what its name says",
                str(file),
                str(error)[:160],
                "copy or download it again",
            )
        ) from error


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
