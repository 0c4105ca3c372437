"""Read tables as rows: Parquet, Arrow, folders that ``datasets`` has saved, and data sets of the hub."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.core.files import open_file
from paceline.data import codes
from paceline.data.rows.values import Cell, RawRow, without_filled
from paceline.data.sources.locate import Located

if TYPE_CHECKING:
    from datasets import Dataset

_BATCH_ROWS = 1024  # few enough that their objects fit into a CPU's cache


def check_names(names: Sequence[str], where: str) -> None:
    """Raise DataError if two columns have the same name, since only one would be read."""
    for name in names:
        if names.count(name) > 1:
            columns = ", ".join(column[:60] for column in names)
            raise DataError(codes.DATA_TWO_COLUMNS(where, f"columns {columns}", name=name[:60]))


def parquet_rows(file: Path) -> Iterator[RawRow]:
    """Read a Parquet file, a batch at a time."""
    import pyarrow.parquet as pq

    size = file.stat().st_size
    with _table_errors(file, codes.DATA_NOT_PARQUET) as table, pq.ParquetFile(file) as parquet:
        total = max(parquet.metadata.num_rows, 1)
        check_names(parquet.schema_arrow.names, str(file))
        for batch in parquet.iter_batches(batch_size=_BATCH_ROWS):
            for row in table.rows(batch.to_pylist()):
                yield row._replace(consumed=size * table.number // total)


def arrow_rows(file: Path) -> Iterator[RawRow]:
    """Read an Arrow file, or a stream as ``datasets`` writes them."""
    import pyarrow as pa

    with _table_errors(file, codes.DATA_NOT_ARROW) as table, open_file(file) as stream:
        # The first bytes of a file; a stream, as datasets writes it, has none of its own
        is_file = stream.read(6) == b"ARROW1"
        stream.seek(0)
        reader = pa.ipc.open_file(stream) if is_file else pa.ipc.open_stream(stream)
        check_names(reader.schema.names, str(file))
        for batch in map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader:
            for start in range(0, batch.num_rows, _BATCH_ROWS):
                yield from table.rows(batch.slice(start, _BATCH_ROWS).to_pylist())


@dataclass
class _TableRows:
    """The rows of a table called ``name``, numbered from 1."""

    name: str
    number: int = 0

    def rows(self, values: Iterable[dict[str, Cell]]) -> Iterator[RawRow]:
        """Yield the next rows."""
        for value in values:
            self.number += 1
            yield RawRow(without_filled(value), f"{self.name}:row {self.number}")


@contextmanager
def _table_errors(file: Path, code: Callable[[str, str], Diagnostic]) -> Iterator[_TableRows]:
    """Yield a counter of rows; turn errors of reading a table into a DataError with the row's number."""
    import pyarrow as pa

    table = _TableRows(str(file))
    try:
        yield table
    # ValueError and OverflowError: dates beyond Python's range
    except (pa.ArrowException, OSError, ValueError, OverflowError) as exc:
        where = f"{file}:row {table.number + 1}" if table.number else str(file)
        raise DataError(code(where, str(exc).split("\n")[0][:200])) from exc


def saved_rows(folder: Path, split: str) -> Iterator[RawRow]:
    """Read a directory written by ``datasets.save_to_disk``."""
    import datasets

    try:
        loaded = datasets.load_from_disk(str(folder))
    except Exception as exc:  # noqa: BLE001  (the library raises many kinds; each means the same here)
        raise DataError(codes.DATA_NOT_A_DATASET(str(folder), f"{type(exc).__name__}: {exc}")) from exc
    splits = dict(loaded) if isinstance(loaded, datasets.DatasetDict) else None
    if splits is None and split != "train":
        raise DataError(
            codes.DATA_SPLIT_MISSING(
                "the datasets directory has no splits", str(folder), f"split: {split}", "remove split:"
            )
        )
    if splits is not None and split not in splits:
        raise DataError(
            codes.DATA_SPLIT_MISSING(
                f"there is no split '{split}'",
                str(folder),
                f"splits {', '.join(splits)}",
                f"split: {next(iter(splits))} (next to path:)",
            )
        )
    yield from records(loaded if splits is None else splits[split], str(folder))


def _holds_images(feature: object) -> bool:
    """Whether a feature of ``datasets`` is a picture, or has one inside."""
    import datasets

    if isinstance(feature, dict):
        return any(map(_holds_images, feature.values()))
    if isinstance(feature, list):
        return any(map(_holds_images, feature))
    return isinstance(feature, datasets.Image) or _holds_images(getattr(feature, "feature", []) or [])


def records(dataset: Dataset, name: str) -> Iterator[RawRow]:
    """Yield the rows of a loaded data set called ``name``."""
    table = _TableRows(name)
    if _holds_images(dataset.features):  # as bytes and paths: opened within our bounds, not decoded here
        for rows in dataset.with_format("arrow").iter(batch_size=_BATCH_ROWS):
            yield from table.rows(rows.to_pylist())
        return
    for batch in dataset.with_format(None).iter(batch_size=_BATCH_ROWS):
        columns = list(batch)
        yield from table.rows(
            dict(zip(columns, row, strict=True)) for row in zip(*batch.values(), strict=True)
        )


_HUB_FILES = {"parquet": "parquet", "csv": "csv", "arrow": "arrow", "txt": "text"}


def load_hub(located: Located, split: str) -> Dataset:
    """Load a data set from the hub through ``datasets`` (which runs no scripts). Raises DataError."""
    import datasets

    try:
        if located.hub.startswith("hf://"):  # one file of a data set
            kind = next((kind for end, kind in _HUB_FILES.items() if f".{end}" in located.hub), "json")
            return datasets.load_dataset(kind, data_files=located.hub, split=split)
        return datasets.load_dataset(located.hub, located.hub_config, split=split)
    except Exception as exc:  # noqa: BLE001  (network, hub and format errors alike: the data cannot be had)
        message = str(exc).split("\n")[0][:300]
        raise DataError(
            codes.DATA_HUB(located.hub, f"{type(exc).__name__}: {message}", name=located.hub)
        ) from exc
