"""The rows of a data set in chunks, with notes about what was assumed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.data import codes
from paceline.data.preflight.find_sets import DataSet, look
from paceline.data.prepare.tokenize import CHUNK_ROWS, Chunk, ChunkRow
from paceline.data.rows.examples import Reading
from paceline.data.rows.formats import Shape
from paceline.data.rows.row_errors import Problem
from paceline.data.rows.values import RawRow


@dataclass(frozen=True)
class OpenSet:
    """A data set whose format was detected; ``notes``: what was assumed."""

    shape: Shape
    chunks: Iterator[Chunk]
    notes: tuple[Diagnostic, ...]


def open_set(number: int, data_set: DataSet, reading: Reading) -> OpenSet:
    """Detect the format of a data set and open it. Raises DataError if it has no rows or no known format."""
    looked = look(data_set, reading)
    chunks = _chunks(number, looked.shape, looked.rows)
    return OpenSet(looked.shape, chunks, tuple(_notes(data_set, looked.shape)))


def _notes(data_set: DataSet, shape: Shape) -> Iterator[Diagnostic]:
    path = data_set.section.path
    if data_set.section.format == "auto":
        what = f"the rows are read as {shape.format}" + (f": {shape.note}" if shape.note else "")
        yield codes.DATA_FORMAT(what, path, severity=Severity.NOTE)
    if data_set.located.note:
        yield codes.DATA_FILES_LEFT_OUT(data_set.located.note, path, severity=Severity.NOTE)
    if data_set.section.max_rows is not None:
        yield codes.DATA_MAX_ROWS(path, max_rows=data_set.section.max_rows)


def _chunks(number: int, shape: Shape, rows: Iterator[RawRow]) -> Iterator[Chunk]:
    counter = itertools.count()
    while block := list(itertools.islice(rows, CHUNK_ROWS)):
        numbered = [(next(counter), row) for row in block]
        usable = [ChunkRow(n, r.where, r.value) for n, r in numbered if r.value is not None]
        problems = [Problem(r.reason, r.where, r.detail) for r in block if r.value is None]
        yield Chunk(number, shape, usable, len(block), block[-1].consumed, problems)
