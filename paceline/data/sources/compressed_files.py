"""Open files of rows, also compressed ones: gzip, Zstandard, xz and bzip2, read as a stream."""

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
from paceline.data.sources.file_kinds import COMPRESSED


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


_UNPACK: Mapping[str, Callable[[BinaryIO], io.BufferedReader]] = {
    ".gz": lambda stream: _buffered(gzip.GzipFile(fileobj=stream)),
    ".xz": lambda stream: _buffered(lzma.LZMAFile(stream)),  # noqa: SIM115
    ".bz2": lambda stream: _buffered(bz2.BZ2File(stream)),
    ".zst": _zstd,
}


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Raise a DataError in place of what opening and reading a file raises, damaged compressed ones too."""
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if not is_packed(file) or getattr(error, "errno", None) is not None:
            found = getattr(error, "strerror", None) or str(error)
            raise DataError(codes.DATA_UNREADABLE("the file cannot be read", str(file), found)) from error
        what = "the compressed file is damaged, truncated, or not what its name says"
        hint = "copy or download it again"
        raise DataError(codes.DATA_UNREADABLE(what, str(file), str(error)[:160], hint)) from error
