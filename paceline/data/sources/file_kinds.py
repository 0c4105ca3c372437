"""Recognise files of rows by name: their format and compression; and open them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO

from paceline.core.errors import DataError
from paceline.core.files import open_file
from paceline.data import codes

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
