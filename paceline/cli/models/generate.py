"""``paceline generate``."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.cli.models import evaluation_options as options
from paceline.cli.process import call
from paceline.core.json_types import JsonObject

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def generate(
    subjects: options.Subjects,
    data: options.DataFile,
    to: Annotated[str, typer.Option("--to", metavar="OUT", help="The file to write, a JSON line an answer.")],
    checkpoint: Annotated[
        str, typer.Option(metavar="WHICH", help="Which of a run: result, latest, best or step-N.")
    ] = "result",
    samples: options.Samples = 1,
    seed: options.Seed = 0,
    row_format: options.RowFormat = "auto",
    columns: options.Columns = None,
    split: options.Split = "train",
    max_rows: options.MaxRows = None,
    batch_size: options.BatchSize = 8,
    nproc: options.Nproc = None,
    strategy: options.Strategy = "copies",
    dtype: options.Dtype = "float32",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that exists.")] = False,
) -> None:
    """Write a model's answers to the rows of a file.

    Prompts are rendered as in training, with their tools. The same command goes on where a killed one was;
    the answers do not depend on the number of processes. A row that cannot be used is named before anything
    is generated (data.on_bad_row=skip leaves such rows out).
    """
    from paceline.api.evaluating import generated

    models, settings = options.split_subjects(subjects)
    job: JsonObject = {
        "models": [*models],
        "data": options.data_set(data, row_format, columns, split, max_rows),
        "overrides": [*settings],
        "checkpoints": checkpoint,
        "samples": samples,
        "seed": seed,
        "batch_size": batch_size,
        "nproc": nproc,
        "strategy": strategy,
        "dtype": dtype,
        "to": to,
        "overwrite": overwrite,
    }
    code, found = generated(job, call)
    if code:
        raise typer.Exit(code)
    before = f", {found['resumed_rows']:,} of them by an earlier command" if found["resumed_rows"] else ""
    left = f"; {found['rows_skipped']:,} rows left out" if found["rows_skipped"] else ""
    typer.echo(f"{found['answers']:,} answers to {found['rows']:,} rows{before}{left}: {found['to']}")
