"""A look at the first row of a local data file: what another system reads off the rows, our config says."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from paceline.core.files import open_file
from paceline.core.json_types import JsonObject, as_object

_LIMIT = 1 << 20


def local_file(path: str, folder: Path) -> Path | None:
    """Return a data file that is here, or in ``folder``."""
    return next((p for p in (Path(path), folder / path) if p.is_file()), None)


def first_row(path: str, folder: Path) -> JsonObject:
    """Return the first row of a JSON, JSON-lines, CSV or Parquet file; empty if it is none or is too long."""
    file = local_file(path, folder)
    if file is None or file.suffix not in (".json", ".jsonl", ".csv", ".parquet"):
        return {}
    if file.suffix == ".parquet":
        return _of_parquet(file)
    with open_file(file) as stream:
        text = stream.read(_LIMIT).decode("utf-8-sig", errors="replace")
    if file.suffix == ".csv":
        return dict(next(csv.DictReader(text.splitlines(keepends=True)), {}))
    start = text.lstrip().removeprefix("[").lstrip()
    try:
        row, _ = json.JSONDecoder().raw_decode(start)
    except ValueError:
        return {}
    return as_object(row)


def _of_parquet(file: Path) -> JsonObject:
    import pyarrow
    import pyarrow.parquet

    try:
        with open_file(file) as stream, pyarrow.parquet.ParquetFile(stream) as table:
            batch = next(table.iter_batches(batch_size=1), None)
    except (pyarrow.ArrowException, OSError):
        return {}
    return as_object(batch.to_pylist()[0]) if batch else {}
