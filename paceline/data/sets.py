"""The data sets of a config: located, their shape found out, their rows cut into chunks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import DataError
from paceline.data.formats import COLUMNS, Shape, detect
from paceline.data.locate import Located, locate
from paceline.data.pairs import detect_pairs
from paceline.data.problems import Problem, Tally, refusal
from paceline.data.prompts import KEEP_ALL, detect_prompts
from paceline.data.readers import RawRow, read_rows
from paceline.data.tokenise import CHUNK_ROWS, Chunk, ChunkRow

if TYPE_CHECKING:
    from paceline.config.sections.data import Dataset

_LOOKED_AT = 64  # rows from which the format is found out


@dataclass(frozen=True)
class DataSet:
    """One data set of ``data.train`` or ``data.eval``: its section and where it is. ``key`` is its place in the config."""

    key: str
    section: Dataset
    located: Located


@dataclass(frozen=True)
class OpenSet:
    """A data set whose first rows were looked at; ``notes`` say what was assumed."""

    shape: Shape
    chunks: Iterator[Chunk]
    notes: tuple[Diagnostic, ...]


def find_sets(key: str, sections: tuple[Dataset, ...]) -> list[DataSet]:
    """Locate the data sets under ``data.train`` or ``data.eval``. Raises DataError with all that are missing."""
    found: list[DataSet] = []
    problems: list[Diagnostic] = []
    for number, section in enumerate(sections):
        try:
            found.append(DataSet(f"{key}[{number}]", section, locate(section.path, section.split, section.name)))
        except DataError as error:
            problems.extend(error.diagnostics)
    if problems:
        raise DataError(*problems)
    return found


def open_set(number: int, data_set: DataSet, pairs: bool = False, prompts: bool = False) -> OpenSet:
    """Look at the first rows of a data set and find out its shape (``pairs``: of preference pairs, ``prompts``: of prompts). Raises DataError when it has none, or no rows."""
    section = data_set.section
    rows = iter(read_rows(data_set.located, section.split))
    if section.max_rows is not None:
        rows = itertools.islice(rows, section.max_rows)
    head: list[RawRow] = []
    for row in rows:
        head.append(row)
        if sum(r.value is not None for r in head) >= _LOOKED_AT:
            break
    values = [r.value for r in head if r.value is not None]
    if not values:
        raise DataError(*_no_rows(data_set, head))
    find = detect_prompts if prompts else detect_pairs if pairs else detect
    shape = find(values, where=section.path, asked=section.format, mapping=section.columns)
    return OpenSet(shape, _chunks(number, shape, itertools.chain(head, rows)), tuple(_notes(data_set, shape, values)))


def _no_rows(data_set: DataSet, head: list[RawRow]) -> tuple[Diagnostic, ...]:
    if not head:
        return (
            Diagnostic(
                "data.empty",
                "the data set has no rows",
                data_set.section.path,
                "0 rows",
                f"{data_set.key}: data with rows",
            ),
        )
    tallies: dict[str, Tally] = {}
    for row in head:
        tallies.setdefault(row.reason, Tally()).add(row.where, row.detail)
    return refusal(tallies, len(head))


def _notes(data_set: DataSet, shape: Shape, values: list[dict]) -> Iterator[Diagnostic]:
    path = data_set.section.path
    if data_set.section.format == "auto":
        what = f"the rows are read as {shape.format}" + (f": {shape.note}" if shape.note else "")
        yield Diagnostic("data.format", what, path, severity=Severity.NOTE)
    must, may = COLUMNS.get(shape.format, (tuple(shape.columns), ()))  # of a pair all that were found are used
    used = {shape.columns[name] for name in (*must, *may) if name in shape.columns}
    unused = [name for name in dict.fromkeys(n for v in values for n in v) if name not in used]
    if unused and shape.format not in KEEP_ALL:
        yield Diagnostic(
            "data.columns_unused", f"columns that are not used: {', '.join(unused)}", path, severity=Severity.NOTE
        )
    if data_set.located.note:
        yield Diagnostic("data.files_left_out", data_set.located.note, path, severity=Severity.NOTE)
    if data_set.section.max_rows is not None:
        yield Diagnostic(
            "data.max_rows",
            f"only the first {data_set.section.max_rows:,} rows are read (max_rows)",
            path,
            severity=Severity.NOTE,
        )


def _chunks(number: int, shape: Shape, rows: Iterator[RawRow]) -> Iterator[Chunk]:
    counter = itertools.count()
    while block := list(itertools.islice(rows, CHUNK_ROWS)):
        numbered = [(next(counter), row) for row in block]
        usable = [ChunkRow(n, r.where, r.value) for n, r in numbered if r.value is not None]
        problems = [Problem(r.reason, r.where, r.detail) for r in block if r.value is None]
        yield Chunk(number, shape, usable, len(block), block[-1].consumed, problems)
