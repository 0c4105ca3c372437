"""``paceline evaluate``."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from paceline.cli import codes
from paceline.cli.models import evaluation_options as options
from paceline.cli.process import become, call
from paceline.core.errors import ConfigError
from paceline.core.json_types import JsonObject

if TYPE_CHECKING:
    from paceline.api.evaluating import Evaluation

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)

Metrics = Annotated[
    str | None,
    typer.Option(
        metavar="A,B",
        help=(
            "Metrics of generated answers: exact_match, numeric, f1, rouge, bleu, math_verify, pass@k,"
            " pass@k:METRIC, or your own as module:function."
        ),
    ),
]
Checkpoints = Annotated[
    str, typer.Option(metavar="WHICH", help="Which of a run: result, latest, best, all or step-N.")
]
Losses = Annotated[bool, typer.Option(help="Compute loss, perplexity and token accuracy.")]
Judge = Annotated[
    str | None, typer.Option(metavar="MODEL", help="A run or folder whose model scores answers, 0 to 10.")
]
JudgePrompt = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="What the judge is shown, with {prompt} {expected} {answer}."),
]
LmEval = Annotated[
    str | None,
    typer.Option(
        "--lm-eval",
        metavar="A,B",
        help="Tasks of lm-evaluation-harness in place of --data: names, or YAML files of your own.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Picture = Annotated[
    Path | None,
    typer.Option(
        metavar="PNG",
        help="Draw the numbers by checkpoint [default for several of a run: RUN/evaluation.png].",
    ),
]


@app.command()
def evaluate(
    subjects: options.Subjects,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="F", help="The rows: a file, folder or data set, as in data.train."),
    ] = None,
    metrics: Metrics = None,
    checkpoints: Checkpoints = "result",
    losses: Losses = True,
    samples: options.Samples = 1,
    seed: options.Seed = 0,
    judge: Judge = None,
    judge_prompt: JudgePrompt = None,
    row_format: options.RowFormat = "auto",
    columns: options.Columns = None,
    split: options.Split = "train",
    max_rows: options.MaxRows = None,
    batch_size: options.BatchSize = 8,
    nproc: options.Nproc = None,
    strategy: options.Strategy = "copies",
    dtype: options.Dtype = "float32",
    as_json: AsJson = False,
    plot: Picture = None,
    lm_eval: LmEval = None,
) -> None:
    """Measure models over the rows of a file: loss, perplexity, token accuracy, and metrics of their answers.

    Rows are read as in training: the run's template, max_length and train_on. Every row counts once on any
    number of processes.
    """
    from paceline.api.evaluating import evaluated

    models, settings = options.split_subjects(subjects)
    if lm_eval is not None:
        if data is not None or settings or metrics or judge:
            what, hint = "tasks bring their own rows and metrics", "two commands, one of them with --data"
            raise ConfigError(codes.CLI_OPTION(what, "--lm-eval", lm_eval, hint))
        _harness(models, lm_eval, checkpoints, batch_size, max_rows, dtype, as_json)
    if data is None:
        hint = "--data F, or tasks of lm-evaluation-harness: --lm-eval A,B"
        raise ConfigError(codes.CLI_OPTION("no rows are named", "--data", "", hint))
    job: JsonObject = {
        "models": [*models],
        "data": options.data_set(data, row_format, columns, split, max_rows),
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
        "strategy": strategy,
        "dtype": dtype,
    }
    code, found = evaluated(job, call)
    if code:
        raise typer.Exit(code)
    to = plot or (Path(models[0]) / "evaluation.png" if len(models) == 1 and len(found) > 1 else None)
    raise typer.Exit(_show(found, as_json, to))


def _harness(
    models: Sequence[str],
    tasks: str,
    checkpoints: str,
    batch_size: int,
    limit: int | None,
    dtype: str,
    as_json: bool,
) -> NoReturn:
    """Become the program that runs tasks of lm-evaluation-harness."""
    options = ["--tasks", tasks, "--checkpoints", checkpoints, "--batch-size", str(batch_size)]
    options += ["--dtype", dtype, *(["--limit", str(limit)] if limit is not None else [])]
    become("paceline.evaluation.harness", *models, *options, *(["--json"] if as_json else []))


def _show(found: Sequence[Evaluation], as_json: bool, to: Path | None) -> int:
    """Print what was found, draw it into ``to`` if given, and return the exit code."""
    from paceline.api.evaluating import table

    rows = [{**asdict(one), "path": str(one.path)} for one in found]
    typer.echo(json.dumps(rows, indent=1) if as_json else table(found))
    for one in found:
        for name, words in (("rows_skipped", "left out"), ("rows_truncated", "cut off at data.max_length")):
            if one.scores.get(name):
                typer.echo(f"{one.name}: {one.scores[name]:,} rows {words}", err=True)
    if to is None:
        return 0
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        file = Path(folder) / "evaluations.json"
        file.write_text(json.dumps(rows), encoding="utf-8")
        return call("paceline.watch.evaluation_plot", str(file), str(to))
