"""Locate the data sets of a config, and detect their formats from the first rows."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.data import codes
from paceline.data.rows.examples import Reading
from paceline.data.rows.formats import Shape
from paceline.data.rows.messages import parsed_turns
from paceline.data.rows.row_errors import Tally, refusal
from paceline.data.rows.values import RawRow, Row
from paceline.data.sources.file_kinds import kind_of
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


Detect = Callable[[Sequence[Row]], Shape]


def near_shapes(rows: Sequence[Row], detect: Detect, where: str) -> Iterator[Diagnostic]:
    """Yield what would make ``detect`` find a shape of the rows, the likeliest first."""
    found = list(dict.fromkeys(name for row in rows for name in row))
    seen = f"columns {', '.join(found) or 'none'}"
    if respelt := _respelt(rows, found, detect):
        what = "the rows match a format but for how their columns are spelt"
        listed = ", ".join(f"{name}: {_plain(own)}" for name, own in respelt.items())
        yield codes.DATA_FORMAT_UNKNOWN(what, where, seen, f"columns: {{{listed}}} (next to path:)")
    for name in found if len(rows) == 1 else ():
        inner = rows[0].get(name)
        if isinstance(inner, list) and inner and all(isinstance(row, Mapping) for row in inner):
            inside = [row for row in inner if isinstance(row, Mapping)]
            if _shape(inside, detect) is not None:
                what = f"the rows stand in a list '{name}' within one object"
                hint = f"write one row per line: jq -c '.\"{name}\"[]' {Path(where).name} > rows.jsonl"
                yield codes.DATA_NOT_A_LIST(what, where, seen, hint)
    if kind_of(Path(where)) in ("csv", "tsv") and any(" " in name.strip() for name in found):
        what = "the first line of the file names no columns of a format; it may be a row"
        hint = "put a line with the names of the columns before the rows, such as prompt,completion"
        yield codes.DATA_FORMAT_UNKNOWN(what, where, seen, hint)


def _respelt(rows: Sequence[Row], found: Sequence[str], detect: Detect) -> dict[str, str]:
    """Return the format's columns by the file's names, if letters' case and blanks alone part them."""
    plain = {name: "_".join(name.replace("-", " ").lower().split()) for name in found}
    if len(set(plain.values())) < len(found):
        return {}
    shape = _shape([{plain[name]: value for name, value in row.items()} for row in rows], detect)
    own = {new: old for old, new in plain.items()}
    columns = shape.columns if shape is not None else {}
    # ``columns:`` takes the format's own names: those of alternatives (question, answer) are the file's
    return {name: own[new] for name, new in columns.items() if new in own and own[new] != name}


def _shape(rows: Sequence[Row], detect: Detect) -> Shape | None:
    try:
        return detect(rows)
    except DataError:
        return None


def _plain(name: str) -> str:
    """Return a name as YAML has it within braces."""
    is_word = name.replace("_", "").isalnum() and name.isascii()
    return name if is_word else json.dumps(name, ensure_ascii=False)
