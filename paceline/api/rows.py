"""Rows that a caller gives as Python objects, as a file that every rank can read."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from paceline.api import codes
from paceline.api.own_parts import importable_name
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json

_Rows = Iterable[Mapping[str, Any]]
Rows = str | PathLike[str] | _Rows | Callable[[], _Rows]


def dataset_setting(rows: Rows | None, name: str, cache: Path) -> Json:
    """Return the value of data.train or data.eval: a path is kept, a function becomes its name, rows are
    written to ``cache``.

    Raises ConfigError (``api.rows``) for what is no row.
    """
    if rows is None or isinstance(rows, str):
        return rows
    if isinstance(rows, PathLike):
        return str(rows)
    if callable(rows):
        return importable_name(rows, name)
    return [{"path": str(written(rows, name, cache / "rows"))}]


def written(rows: _Rows, name: str, folder: Path) -> Path:
    """Write rows as JSON lines under the digest of their content, and return the file.

    The same rows always have the same file, so that what was prepared of them is found again.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    digest, count = hashlib.sha256(), 0
    with tempfile.NamedTemporaryFile("wb", dir=folder, prefix=".rows-", delete=False) as file:
        try:
            for count, row in enumerate(_each(rows, name), 1):
                line = json.dumps(_row(row, f"{name}[{count - 1}]"), ensure_ascii=False).encode() + b"\n"
                digest.update(line)
                file.write(line)
            if not count:
                hint = "a list of mappings, e.g. [{'prompt': …, 'completion': …}]"
                raise ConfigError(codes.API_ROWS("there are no rows", name, "", hint))
        except BaseException:
            os.unlink(file.name)
            raise
    path = folder / f"{digest.hexdigest()[:32]}.jsonl"
    os.replace(file.name, path)
    return path


def _each(rows: _Rows, name: str) -> Iterator[Mapping[str, Any]]:
    records = getattr(rows, "to_dict", None)
    if hasattr(rows, "iterrows") and callable(records):  # a pandas frame
        yield from records(orient="records")
        return
    if isinstance(rows, Mapping):
        hint = "a list of mappings, one a row"
        raise ConfigError(codes.API_ROWS("this is one mapping, not rows", name, type(rows).__name__, hint))
    yield from rows


def _row(row: object, where: str) -> dict[str, Json]:
    if not isinstance(row, Mapping):
        hint = "a mapping of column names to values"
        raise ConfigError(codes.API_ROWS("this is not a row", where, type(row).__name__, hint))
    return {str(key): _value(value, f"{where}[{str(key)!r}]") for key, value in row.items()}


def _value(value: object, where: str) -> Json:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None  # what pandas has in place of nothing
    if isinstance(value, Mapping):
        return {str(key): _value(item, f"{where}[{str(key)!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_value(item, f"{where}[{index}]") for index, item in enumerate(value)]
    tolist = getattr(value, "tolist", None)  # numpy's arrays and numbers
    if callable(tolist):
        return _value(tolist(), where)
    hint = "texts, numbers, true, false, None, lists and mappings of these"
    raise ConfigError(codes.API_ROWS("a row cannot hold this", where, type(value).__name__, hint))
