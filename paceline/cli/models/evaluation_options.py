"""Options that ``paceline evaluate`` and ``paceline generate`` share, and what they mean together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import codes
from paceline.core.errors import ConfigError
from paceline.core.json_types import JsonObject

Subjects = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL... [KEY=VALUE...]",
        help=(
            "Runs, checkpoints or Hugging Face folders; and values of the sections data, generation and"
            " model, e.g. data.max_length=512 generation.temperature=0.7 (else as the run was trained)."
        ),
    ),
]
DataFile = Annotated[
    str, typer.Option("--data", metavar="F", help="The rows: a file, folder or data set, as in data.train.")
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="A=B,...", help="Names of columns, as data.train's columns: prompt=question,answer=a."
    ),
]
RowFormat = Annotated[str, typer.Option("--format", help="Format of the rows, as data.train's.")]
Split = Annotated[str, typer.Option(help="Split of a data set of several.")]
MaxRows = Annotated[int | None, typer.Option(min=1, help="Read only so many rows.")]
Nproc = Annotated[int | None, typer.Option(min=1, help="Processes [default: one a GPU, one on a CPU].")]
Strategy = Annotated[
    str,
    typer.Option(
        help=(
            "How the processes hold the model: copies, or parts of one that is larger than a card: tp (heads"
            " and columns are divided) or fsdp (layers are gathered one after the other)."
        )
    ),
]
BatchSize = Annotated[
    int, typer.Option(min=1, help="Rows computed together; the same batches on any number of processes.")
]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]
Samples = Annotated[int, typer.Option(min=1, help="Answers a row; needs generation.temperature above 0.")]
Seed = Annotated[int, typer.Option(help="Seed of the sampling noise.")]


def data_set(path: str, row_format: str, columns: str | None, split: str, max_rows: int | None) -> JsonObject:
    """Return the data set that the options describe. Raises ConfigError."""
    named: JsonObject = {}
    for part in (columns or "").split(","):
        name, equals, there = part.partition("=")
        if part and not (name and equals and there):
            hint = "--columns prompt=question,answer=solution"
            raise ConfigError(codes.CLI_OPTION("this names no column", "--columns", part, hint))
        named |= {name: there} if part else {}
    return {"path": path, "format": row_format, "columns": named, "split": split, "max_rows": max_rows}


def split_subjects(given: list[str]) -> tuple[list[str], list[str]]:
    """Return (models, ``key=value``) among the arguments. Raises ConfigError if no model is named."""
    settings = [one for one in given if "=" in one and not Path(one).exists()]
    models = [one for one in given if one not in settings]
    if not models:
        hint = "a run directory, a checkpoint or a Hugging Face folder"
        raise ConfigError(codes.CLI_OPTION("no model is named", "command line", " ".join(given), hint))
    return models, settings
