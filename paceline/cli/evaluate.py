"""``paceline evaluate``."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import codes
from paceline.cli.process import call
from paceline.core.errors import ConfigError
from paceline.core.json_types import JsonObject

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)

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
Split = Annotated[str, typer.Option(help="Split of a data set of several.")]
MaxRows = Annotated[int | None, typer.Option(min=1, help="Read only so many rows.")]
Nproc = Annotated[int | None, typer.Option(min=1, help="Processes [default: one a GPU, one on a CPU].")]
BatchSize = Annotated[
    int, typer.Option(min=1, help="Rows computed together; the same batches on any number of processes.")
]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]
Samples = Annotated[int, typer.Option(min=1, help="Answers a row; needs generation.temperature above 0.")]
Seed = Annotated[int, typer.Option(help="Seed of the sampling noise.")]
DTYPES = ("float32", "bfloat16", "float16")


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


def check_dtype(dtype: str) -> None:
    """Raise ConfigError for a dtype that nothing is computed in."""
    if dtype not in DTYPES:
        hint = ", ".join(DTYPES)
        raise ConfigError(codes.CLI_OPTION("there is no such dtype here", "--dtype", dtype, hint))


@app.command()
def evaluate(
    subjects: Subjects,
    data: DataFile,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help=(
                "Metrics of generated answers: exact_match, numeric, f1, rouge, bleu, math_verify, pass@k,"
                " pass@k:METRIC, or your own as module:function."
            ),
        ),
    ] = None,
    checkpoints: Annotated[
        str, typer.Option(metavar="WHICH", help="Which of a run: result, latest, best, all or step-N.")
    ] = "result",
    losses: Annotated[bool, typer.Option(help="Compute loss, perplexity and token accuracy.")] = True,
    samples: Samples = 1,
    seed: Seed = 0,
    judge: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A run or folder whose model scores answers, 0 to 10.")
    ] = None,
    judge_prompt: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="What the judge is shown, with {prompt} {expected} {answer}."),
    ] = None,
    row_format: Annotated[
        str, typer.Option("--format", help="Format of the rows, as data.train's.")
    ] = "auto",
    columns: Columns = None,
    split: Split = "train",
    max_rows: MaxRows = None,
    batch_size: BatchSize = 8,
    nproc: Nproc = None,
    dtype: Dtype = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="PNG",
            help="Draw the numbers by checkpoint [default for several of a run: RUN/evaluation.png].",
        ),
    ] = None,
) -> None:
    """Measure models over the rows of a file: loss, perplexity, token accuracy, and metrics of their answers.

    Rows are read as in training: the run's template, max_length and train_on. Every row counts once on any
    number of processes.
    """
    from paceline.api.evaluating import evaluated, table

    check_dtype(dtype)
    models, settings = split_subjects(subjects)
    job: JsonObject = {
        "models": [*models],
        "data": data_set(data, row_format, columns, split, max_rows),
        "overrides": [*settings],
        "checkpoints": checkpoints,
        "metrics": [one.strip() for one in (metrics or "").split(",") if one.strip()],
        "losses": losses,
        "samples": samples,
        "seed": seed,
        "judge": judge,
        "judge_prompt": judge_prompt,
        "batch_size": batch_size,
        "nproc": nproc,
        "dtype": dtype,
    }
    if not (losses or job["metrics"] or judge):
        hint = "--metrics exact_match, or leave out --no-losses"
        raise ConfigError(codes.CLI_OPTION("nothing is to be measured", "--no-losses", hint=hint))
    code, found = evaluated(job, call)
    if code:
        raise typer.Exit(code)
    rows = [{**asdict(one), "path": str(one.path)} for one in found]
    typer.echo(json.dumps(rows, indent=1) if as_json else table(found))
    for one in found:
        for name, words in (("rows_skipped", "left out"), ("rows_truncated", "cut off at data.max_length")):
            if one.scores.get(name):
                typer.echo(f"{one.name}: {one.scores[name]:,} rows {words}", err=True)
    to = plot or (Path(models[0]) / "evaluation.png" if len(models) == 1 and len(found) > 1 else None)
    if to is not None:
        with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
            file = Path(folder) / "evaluations.json"
            file.write_text(json.dumps(rows), encoding="utf-8")
            raise typer.Exit(call("paceline.watch.evaluation_plot", str(file), str(to)))
