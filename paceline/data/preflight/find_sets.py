"""Locate the data sets of a config, and detect their formats from the first rows."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.data import codes
from paceline.data.rows.examples import Reading, RowReader
from paceline.data.rows.formats import Example, Shape, column_names, listed
from paceline.data.rows.messages import ROLE_NAMES, parsed_turns
from paceline.data.rows.row_errors import refusal, tallies
from paceline.data.rows.values import RawRow, Row, replaced
from paceline.data.sources.file_kinds import kind_of
from paceline.data.sources.locate import Located, locate
from paceline.data.sources.readers import read_rows
from paceline.data.sources.user_code import converted

if TYPE_CHECKING:
    from paceline.config.sections.data import DataSection, Dataset

T = TypeVar("T")

LOOKED_AT = 64  # rows used to detect the format


@dataclass(frozen=True)
class LocatedDataset:
    """One data set of ``data.train`` or ``data.eval``: its section and location.

    ``key``: its place in the config.
    """

    key: str
    section: Dataset
    located: Located


@dataclass(frozen=True)
class DatasetHead:
    """A data set with its detected shape: ``head`` the first rows, ``rows`` all rows (the head first)."""

    shape: Shape
    head: list[RawRow]
    rows: Iterator[RawRow]

    @property
    def is_whole(self) -> bool:
        """Whether the head is all rows."""
        return len(self.head) < LOOKED_AT

    def usable(self, reading: Reading) -> Iterator[tuple[RawRow, tuple[Example, ...]]]:
        """Yield the rows of the head that have examples, and these."""
        return RowReader(self.shape, reading).usable(self.head)


def converter_named(section: Dataset, otherwise: str | None) -> str | None:
    """Return the converter of a data set: its own, or ``data.converter``."""
    return section.converter or otherwise


def sections_of(data: DataSection, *keys: str) -> Iterator[tuple[str, Dataset]]:
    """Yield (key, section) of ``data.train`` and ``data.eval``, or of those that ``keys`` name."""
    sections = {"data.train": data.train, "data.eval": data.eval or ()}
    yield from ((key, section) for key in keys or sections for section in sections[key])


def find_set(key: str, section: Dataset, number: int = 0) -> LocatedDataset:
    """Locate data set ``number`` of ``data.train`` or ``data.eval``. Raises DataError if it is missing."""
    return LocatedDataset(f"{key}[{number}]", section, locate(section.path, section.split, section.name))


def find_sets(key: str, sections: tuple[Dataset, ...]) -> list[LocatedDataset]:
    """Locate the data sets of ``data.train`` or ``data.eval``. Raises DataError with all that are missing."""
    return collect(partial(find_set, key, section, number) for number, section in enumerate(sections))


def collect(steps: Iterable[Callable[[], T]]) -> list[T]:
    """Run all steps and return their results. Raises DataError with the findings of all that fail."""
    results: list[T] = []
    problems: list[Diagnostic] = []
    for step in steps:
        try:
            results.append(step())
        except DataError as error:
            problems += error.diagnostics
    if problems:
        raise DataError(*problems)
    return results


def read_head(data_set: LocatedDataset, reading: Reading) -> DatasetHead:
    """Read the first rows and detect their shape. Raises DataError if there are none, or no format fits."""
    section = data_set.section
    rows = iter(read_rows(data_set.located, section.split))
    if section.max_rows is not None:
        rows = itertools.islice(rows, section.max_rows)
    if converter := converter_named(section, reading.converter):
        rows = converted(rows, converter)
    if section.replace:
        texts = {str(before): str(after) for before, after in section.replace.items()}
        rows = (row if row.value is None else row._replace(value=replaced(row.value, texts)) for row in rows)
    # After the converter, which may return texts, too
    rows = parsed_turns(rows, section.columns)
    head: list[RawRow] = []
    values: list[Row] = []
    while len(values) < LOOKED_AT and (row := next(rows, None)) is not None:
        head.append(row)
        values += [] if row.value is None else [row.value]
    if not values:
        raise DataError(*_no_rows(data_set, head))
    shape = _shape_of(values, section, reading)
    if reading.refuses(shape):
        raise DataError(
            codes.DATA_TEXT_HAS_NO_ANSWERS(section.path, "data.train_on: assistant beside plain text")
        )
    shape = replace(shape, folder=str(media_beside(data_set.located)))
    return DatasetHead(shape, head, itertools.chain(head, rows))


def media_beside(located: Located) -> Path:
    """Return the folder of a data set's first file, or the current directory."""
    return located.folder or (located.files[0].parent if located.files else Path.cwd())


def _shape_of(values: Sequence[Row], section: Dataset, reading: Reading) -> Shape:
    """Detect the shape of rows. Raises DataError, with the nearest shapes."""
    detect = partial(reading.kind.detect, where=section.path, requested=section.format)
    is_mapped = (role := _role_of(values)) in section.columns.values()
    if is_mapped and not reading.kind.classes:  # a class may be a role
        raise DataError(_flat(role, values, section.path))
    try:
        return detect(values, mapping=section.columns)
    except DataError as error:
        code = error.diagnostics[0].code
        unmapped = not section.columns and code.startswith(("data.format_", "data.column_missing"))
        alike = partial(detect, mapping={})
        near = next(near_shapes(values, alike, section.path), None) if unmapped else None
        raise (DataError(near) if near is not None else error) from error


def _no_rows(data_set: LocatedDataset, head: list[RawRow]) -> tuple[Diagnostic, ...]:
    if not head:
        remedy = f"{data_set.key}: give data with rows"
        return (codes.DATA_EMPTY("the data set has no rows", data_set.section.path, "0 rows", remedy),)
    return refusal(tallies((row.reason, row.where, row.detail) for row in head), len(head))


Detect = Callable[[Sequence[Row]], Shape]


def near_shapes(rows: Sequence[Row], detect: Detect, where: str) -> Iterator[Diagnostic]:
    """Yield changes with which ``detect`` would find a shape of the rows, the likeliest first."""
    names = column_names(rows)
    seen = listed(names)
    if role := _role_of(rows):
        yield _flat(role, rows, where)
    if respelt := _respelt(rows, names, detect):
        yield codes.DATA_FORMAT_UNKNOWN(
            "the rows match a format but for how their columns are spelt",
            where,
            seen,
            f"columns: {{{', '.join(f'{name}: {_plain(actual)}' for name, actual in respelt.items())}}}"
            " (next to path:)",
        )

    for name in names:
        lists = [inner for row in rows if isinstance(inner := row.get(name), list)]
        inside = [row for inner in lists for row in inner if isinstance(row, Mapping)]
        whole = len(lists) == len(rows) and len(inside) == sum(map(len, lists))
        if inside and whole and _shape(inside, detect) is not None:
            yield codes.DATA_NOT_A_LIST(
                f"the rows stand in a list '{name}' within {'one object' if len(rows) == 1 else 'each line'}",
                where,
                seen,
                f"write one row per line: jq -c '.\"{name}\"[]' {Path(where).name} > rows.jsonl",
            )
    if kind_of(Path(where)) in ("csv", "tsv") and any(" " in name.strip() for name in names):
        yield codes.DATA_FORMAT_UNKNOWN(
            "the first line of the file names no columns of a format; it may be a row",
            where,
            seen,
            "put a line with the names of the columns before the rows, such as prompt,completion",
        )


def _role_of(rows: Sequence[Row]) -> str:
    """Return the column with the roles, where each row is one turn; empty for other rows."""
    for role, text in (("role", "content"), ("from", "value")):
        if all(str(row.get(role)) in ROLE_NAMES and text in row for row in rows):
            return role
    return ""


def _flat(role: str, rows: Sequence[Row], where: str) -> Diagnostic:
    column, text = ("messages", "content") if role == "role" else ("conversations", "value")
    return codes.DATA_FORMAT_UNKNOWN(
        "each row is one turn, and nothing says which turns are one conversation",
        where,
        listed(column_names(rows)),
        f'write a conversation a row: {{"{column}": [{{"{role}": …, "{text}": …}}, …]}}',
    )


def _respelt(rows: Sequence[Row], names: Sequence[str], detect: Detect) -> dict[str, str]:
    """Map the format's columns to the file's names, if they differ only in case and blanks."""
    plain = {name: "_".join(name.replace("-", " ").lower().split()) for name in names}
    actual = {new: old for old, new in plain.items()}
    if len(actual) < len(names):
        return {}
    shape = _shape([{plain[name]: value for name, value in row.items()} for row in rows], detect)
    columns = shape.columns if shape is not None else {}
    # ``columns:`` takes the format's own names: those of alternatives (question, answer) are the file's
    return {name: actual[new] for name, new in columns.items() if new in actual and actual[new] != name}


def _shape(rows: Sequence[Row], detect: Detect) -> Shape | None:
    try:
        return detect(rows)
    except DataError:
        return None


def _plain(name: str) -> str:
    """Quote a name for YAML inside braces, if needed."""
    is_word = name.replace("_", "").isalnum() and name.isascii()
    return name if is_word else json.dumps(name, ensure_ascii=False)
