"""Locate the data sets of a config and detect their formats from the first rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.data import codes
from paceline.data.rows.examples import Reading
from paceline.data.rows.formats import Shape
from paceline.data.rows.json_turns import parsed_turns
from paceline.data.rows.near_shapes import near_shapes
from paceline.data.rows.row_errors import Tally, refusal
from paceline.data.rows.values import RawRow, Row
from paceline.data.sources.locate import Located, locate
from paceline.data.sources.readers import read_rows
from paceline.data.sources.user_code import converted

if TYPE_CHECKING:
    from paceline.config.sections.data import Dataset

LOOKED_AT = 64  # rows used to detect the format


@dataclass(frozen=True)
class DataSet:
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


def converter_named(section: Dataset, otherwise: str | None) -> str | None:
    """Return the converter of a data set: its own, or ``data.converter``."""
    return section.converter or otherwise


def find_sets(key: str, sections: tuple[Dataset, ...]) -> list[DataSet]:
    """Locate the data sets of ``data.train`` or ``data.eval``. Raises DataError with all that are missing."""
    found: list[DataSet] = []
    problems: list[Diagnostic] = []
    for number, section in enumerate(sections):
        try:
            found.append(
                DataSet(f"{key}[{number}]", section, locate(section.path, section.split, section.name))
            )
        except DataError as error:
            problems.extend(error.diagnostics)
    if problems:
        raise DataError(*problems)
    return found


def look(data_set: DataSet, reading: Reading) -> DatasetHead:
    """Read the first rows and detect their shape. Raises DataError if there are none, or no format fits."""
    section = data_set.section
    rows = iter(read_rows(data_set.located, section.split))
    if section.max_rows is not None:
        rows = itertools.islice(rows, section.max_rows)
    if converter := converter_named(section, reading.converter):
        rows = converted(rows, converter)
    rows = parsed_turns(rows, section.columns)
    head: list[RawRow] = []
    for row in rows:
        head.append(row)
        if sum(r.value is not None for r in head) >= LOOKED_AT:
            break
    values = [r.value for r in head if r.value is not None]
    if not values:
        raise DataError(*_no_rows(data_set, head))
    shape = _shape_of(values, section, reading)
    if reading.refuses(shape):
        raise DataError(
            codes.DATA_TEXT_HAS_NO_ANSWERS(section.path, "data.train_on: assistant beside plain text")
        )
    return DatasetHead(shape, head, itertools.chain(head, rows))


def _shape_of(values: Sequence[Row], section: Dataset, reading: Reading) -> Shape:
    """Detect the shape of rows. Raises DataError, with what they nearly are."""
    detect = partial(reading.kind.detect, where=section.path, requested=section.format)
    try:
        return detect(values, mapping=section.columns)
    except DataError as error:
        code = error.diagnostics[0].code
        unmapped = not section.columns and code.startswith(("data.format_", "data.column_missing"))
        alike = partial(detect, mapping={})
        near = next(near_shapes(values, alike, section.path), None) if unmapped else None
        raise (DataError(near) if near is not None else error) from error


def _no_rows(data_set: DataSet, head: list[RawRow]) -> tuple[Diagnostic, ...]:
    if not head:
        return (
            codes.DATA_EMPTY(
                "the data set has no rows",
                data_set.section.path,
                "0 rows",
                f"{data_set.key}: give data with rows",
            ),
        )
    tallies: dict[str, Tally] = {}
    for row in head:
        tallies.setdefault(row.reason, Tally()).add(row.where, row.detail)
    return refusal(tallies, len(head))
