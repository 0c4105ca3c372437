"""Rows from the user's code: a function that returns them, and a converter. The config names the function in
place of a path, as ``module:function``. The converter gets every row of a data set before its format is
detected.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from typing import TypeAlias

from paceline.core.errors import ConfigError, DataError
from paceline.core.plugins.tables import load_attr, source_of
from paceline.data import codes
from paceline.data.file_digests import sha256_of
from paceline.data.rows.row_errors import CONVERTED_AWAY
from paceline.data.rows.values import Cell, RawRow

_Returned: TypeAlias = "Iterable[Cell | Mapping[str, Cell]] | None"
_PLAIN = (bool, int, float, str, bytes, date, time, timedelta, Decimal)


def own_rows(name: str) -> Iterator[RawRow]:
    """Yield the rows that ``module:function`` returns. Raises DataError."""
    function = _function(name, name)
    try:
        rows = function()
        if rows is None:
            raise TypeError("it returned None")
        for number, row in enumerate(rows, 1):
            where = f"{name}:row {number}"
            if isinstance(row, Mapping):
                yield _checked(row, RawRow(None, where, "not_an_object"))
            else:
                yield RawRow(None, where, "not_an_object", f"{type(row).__name__} {str(row)[:60]!r}")
    except Exception as error:  # a user's function may raise anything
        message, remedy = f"the function '{name}' that gives the rows raised an exception", "correct it"
        raise DataError(
            codes.DATA_OWN_ROWS(message, name, f"{type(error).__name__}: {error}"[:200], remedy)
        ) from error


def own_digest(name: str) -> str:
    """Return the digest of all rows that ``module:function`` returns: the same rows are the same data set."""
    digest = hashlib.sha256()
    for row in own_rows(name):
        # The rows are read twice: once for their digest, once to be tokenized
        digest.update(json.dumps([row.value, row.detail], sort_keys=True, default=repr).encode() + b"\n")
    return digest.hexdigest()


def converter_digest(name: str) -> list[str]:
    """Return a converter's part of the cache key: its name, and the digest of its module's source."""
    source = source_of(name.partition(":")[0])
    return [name, sha256_of(source)] if source is not None and source.is_file() else [name]


def converted(rows: Iterator[RawRow], name: str) -> Iterator[RawRow]:
    """Yield each row as the converter ``module:function`` returns it. A row is left out if the converter
    returns None, and cannot be used if the converter raises. Raises DataError if there is no such function.
    """
    convert = _function(name, "data.converter")
    for row in rows:
        if row.value is None:
            yield row
            continue
        wrong = row._replace(value=None, reason="converter")
        try:
            value = convert(row.value)
        except Exception as error:
            yield wrong._replace(detail=f"{type(error).__name__}: {error}"[:200])
            continue
        if value is None:
            yield wrong._replace(reason=CONVERTED_AWAY)
        elif not isinstance(value, Mapping):
            yield wrong._replace(detail=f"returned {type(value).__name__}")
        else:
            yield _checked(value, wrong)


def _checked(value: Mapping[str, Cell], wrong: RawRow) -> RawRow:
    """Return the row ``value``; raise the error of ``wrong`` for the first value that a row cannot hold."""
    for key, item in value.items():
        if not isinstance(key, str) or not _is_cell(item):
            return wrong._replace(detail=f"{key!r} is {type(item).__name__}"[:100])
    return wrong._replace(value=dict(value), reason="")


def _is_cell(value: Cell) -> bool:
    if value is None or isinstance(value, _PLAIN):
        return True
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_cell(item) for key, item in value.items())
    return isinstance(value, (list, tuple)) and all(map(_is_cell, value))


def _function(name: str, where: str) -> Callable[..., _Returned]:
    try:
        function = load_attr(name)
    except ConfigError as error:
        raise DataError(*error.diagnostics) from error
    if not callable(function):
        message = f"'{name}' is no function"
        raise DataError(codes.DATA_OWN_ROWS(message, where, type(function).__name__, "name a function"))
    return function
