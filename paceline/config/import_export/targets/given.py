"""Inputs of an export besides the config: this machine's precision, and the files next to the exported
one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.config.import_export.local_files import first_row
from paceline.config.schema import Config
from paceline.config.sections.data import Dataset
from paceline.core.json_types import JsonObject

#: a file's ending → the loader of `datasets` that reads it
_LOADERS = {"json": "json", "jsonl": "json", "csv": "csv", "tsv": "csv", "parquet": "parquet", "txt": "text"}
_PACKED = (".gz", ".zst", ".xz", ".bz2")
#: columns → the form of a row that has them, the first match counts
_FORMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("pairs", ("chosen", "rejected")),
    ("labelled", ("completion", "label")),
    ("messages", ("messages",)),
    ("sharegpt", ("conversations",)),
    ("alpaca", ("instruction", "output")),
    ("completion", ("prompt", "completion")),
    ("text", ("text",)),
)


@dataclass(frozen=True)
class Given:
    """Inputs of an export that the config does not hold.

    - ``precision``: ``no``, ``bf16`` or ``fp16``, the value of ``auto`` on this machine
    - ``folder``: the file's folder, relative to the current one; ``stem``: prefix of the names of files next
    to it
    - ``rows``: a folder with ``train.jsonl`` (and ``test.jsonl``), written in the program's form ``form``
    - ``model``: a folder with the initial weights of a model from scratch
    - ``files``: texts to write next to the file, by name; translators add to them
    """

    precision: str = "no"
    folder: str = "."
    stem: str = "exported"
    rows: str = ""
    form: str = ""
    model: str = ""
    files: dict[str, str] = field(default_factory=dict)

    def beside(self, name: str, text: str) -> str:
        """Add a file next to the exported one; return its path from the current folder."""
        self.files[name] = text
        return str(Path(self.folder) / name)

    def form_of(self, config: Config) -> str:
        """Return the format of the training rows; empty if they are not here or have another one."""
        return self.form or next(filter(None, map(form_of, config.data.train)), "")


def loader_of(path: str) -> str | None:
    """Return the loader of ``datasets`` for a file's name; None for a folder or a name on the hub."""
    suffixes = [suffix for suffix in Path(path).suffixes if suffix not in _PACKED]
    return _LOADERS.get(suffixes[-1].removeprefix(".")) if suffixes else None


def form_of(data_set: Dataset) -> str:
    """Return the format of a file's rows, from its first row; empty if it is unknown or the file is not
    here."""
    row = first_row(data_set.path, Path("."))
    return next((form for form, columns in _FORMS if set(columns) <= set(row)), "")


def written_sets(given: Given, config: Config) -> Iterator[tuple[str, str]]:
    """Yield (part, path) of the files of rows that were written."""
    yield "train", f"{given.rows}/train.jsonl"
    if config.data.eval:
        yield "test", f"{given.rows}/test.jsonl"


def reads_as_they_are(data_sets: Sequence[Dataset], forms: tuple[str, ...]) -> bool:
    """Whether every data set has rows of one of ``forms``, without ``columns``, ``format`` or
    ``converter``."""
    plain = all(not d.columns and not d.converter and d.format == "auto" for d in data_sets)
    return plain and all(form_of(d) in forms for d in data_sets)


def present(keys: JsonObject) -> JsonObject:
    """Return the keys that have a value."""
    return {key: value for key, value in keys.items() if value is not None}
