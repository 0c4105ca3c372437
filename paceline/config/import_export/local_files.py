"""Local files that an import reads: a model's config, a data set's first row."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from paceline.config.import_export.verdicts import KeyReader
from paceline.config.yaml_text.read_file import read_text
from paceline.core.errors import ConfigError
from paceline.core.files import open_file
from paceline.core.json_types import JsonObject, as_object


def config_of(reader: KeyReader) -> JsonObject:
    """Return the ``config.json`` of a model folder here, or next to the imported file; else empty."""
    return _of_model(reader, "config.json")


def adds_bos(reader: KeyReader) -> bool:
    """Whether the tokenizer of a model that is a folder here begins each text with its BOS."""
    settings = _of_model(reader, "tokenizer_config.json")
    bos = settings.get("bos_token")
    bos = as_object(bos).get("content", bos)
    processor = json.dumps(_of_model(reader, "tokenizer.json").get("post_processor"), ensure_ascii=False)
    return (
        settings.get("add_bos_token") is True
        or bool(bos)
        and json.dumps(bos, ensure_ascii=False) in processor
    )


def _of_model(reader: KeyReader, name: str) -> JsonObject:
    """Return a JSON file of a model folder here, or next to the imported file; else empty."""
    model = str(reader.given.get("model") or reader.given.get("model_name_or_path") or "")
    for base in (Path("."), Path(reader.result.file).parent):
        file = base / model / name
        if model and file.is_file():
            try:
                return as_object(json.loads(read_text(str(file))))
            except (ValueError, ConfigError):
                return {}
    return {}


# One row is read: a longer one is not looked at
_LIMIT = 1 << 20


def first_row(path: str, folder: Path) -> JsonObject:
    """Return the first row of a JSON, JSON-lines, CSV or Parquet file; empty if it is none or is too long."""
    file = next((p for p in (Path(path), folder / path) if p.is_file()), None)
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


def row_count(path: str, folder: Path) -> int | None:
    """Return the number of rows of a JSON-lines or Parquet file; None for another or a missing one."""
    file = next((p for p in (Path(path), folder / path) if p.is_file()), None)
    if file is not None and file.suffix == ".jsonl":
        with open_file(file) as stream:
            return sum(1 for line in stream if line.strip())
    if file is not None and file.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        try:
            with open_file(file) as stream, pyarrow.parquet.ParquetFile(stream) as table:
                return int(table.metadata.num_rows)
        except (pyarrow.ArrowException, OSError):
            return None
    return None
