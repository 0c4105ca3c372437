"""Verbs that run trained models: ``paceline evaluate``, ``generate``, ``chat`` and ``serve``."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import codes
from paceline.cli.options import AsJson, Dtype, RunFolder
from paceline.cli.process import become, call, words
from paceline.core.errors import ConfigError
from paceline.core.json_types import JsonObject

if TYPE_CHECKING:
    from paceline.api.evaluating import Evaluation

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
_DATA = typer.Option("--data", metavar="F", help="The rows: a file, folder or data set, as in data.train.")
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="A=B,...", help="Names of columns, as data.train's columns: prompt=question,answer=a."
    ),
]
RowFormat = Annotated[str, typer.Option("--format", help="Format of the rows, as data.train's.")]
Split = Annotated[str, typer.Option(help="The split, if the data set has several.")]
MaxRows = Annotated[int | None, typer.Option(min=1, help="Read at most this many rows.")]
Nproc = Annotated[int | None, typer.Option(min=1, help="Processes [default: one a GPU, one on a CPU].")]
Strategy = Annotated[
    str,
    typer.Option(
        help=(
            "How the processes hold the model: copies, or parts of one that is larger than a card: tp (heads"
            " and columns are divided) or fsdp (layers are gathered in turn)."
        )
    ),
]
BatchSize = Annotated[
    int, typer.Option(min=1, help="Rows computed together; the same batches on any number of processes.")
]
Samples = Annotated[int, typer.Option(min=1, help="Answers a row; needs generation.temperature above 0.")]
Seed = Annotated[int, typer.Option(help="Seed of the sampling noise.")]
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
    str, typer.Option(metavar="WHICH", help="Which checkpoint of a run: result, latest, best, all or step-N.")
]
Losses = Annotated[bool, typer.Option(help="Compute loss, perplexity and token accuracy.")]
Judge = Annotated[
    str | None, typer.Option(metavar="MODEL", help="A run or folder whose model scores answers, 0 to 10.")
]
JudgePrompt = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="The judge's prompt, with {prompt} {expected} {answer}."),
]
LmEval = Annotated[
    str | None,
    typer.Option(
        "--lm-eval",
        metavar="A,B",
        help="Tasks of lm-evaluation-harness in place of --data: names, or YAML files of your own.",
    ),
]
Picture = Annotated[
    Path | None,
    typer.Option(
        metavar="PNG",
        help="Plot the metrics by checkpoint [default for several checkpoints: RUN/evaluation.png].",
    ),
]


def evaluate(
    subjects: Subjects,
    data: Annotated[str | None, _DATA] = None,
    metrics: Metrics = None,
    checkpoints: Checkpoints = "result",
    losses: Losses = True,
    samples: Samples = 1,
    seed: Seed = 0,
    judge: Judge = None,
    judge_prompt: JudgePrompt = None,
    row_format: RowFormat = "auto",
    columns: Columns = None,
    split: Split = "train",
    max_rows: MaxRows = None,
    batch_size: BatchSize = 8,
    nproc: Nproc = None,
    strategy: Strategy = "copies",
    dtype: Dtype = "float32",
    as_json: AsJson = False,
    plot: Picture = None,
    lm_eval: LmEval = None,
) -> None:
    """Measure models over the rows of a file: loss, perplexity, token accuracy, and metrics of their answers.

    Rows are read as in training: the run's template, max_length and train_on. Every row counts once on any
    number of processes.
    """
    from paceline.api.evaluating import evaluated

    models, settings = split_subjects(subjects)
    _check_rows(data, lm_eval, alone=not (settings or metrics or judge))
    if lm_eval is not None:
        options = words(tasks=lm_eval, checkpoints=checkpoints, batch_size=batch_size, dtype=dtype)
        become("paceline.evaluation.harness", *models, *options, *words(limit=max_rows, json=as_json))
    job: JsonObject = {
        "models": [*models],
        "data": data_set(data or "", row_format, columns, split, max_rows),
        "overrides": [*settings],
        "checkpoints": checkpoints,
        "metrics": [name.strip() for name in (metrics or "").split(",") if name.strip()],
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
    code, evaluations = evaluated(job, call)
    if code:
        raise typer.Exit(code)
    if plot is None and len(models) == 1 and len(evaluations) > 1:
        plot = Path(models[0]) / "evaluation.png"
    raise typer.Exit(_show(evaluations, as_json, plot))


def _check_rows(data: str | None, lm_eval: str | None, *, alone: bool) -> None:
    """Raise ConfigError unless there is one source of rows; the harness's tasks allow no other options."""
    if lm_eval is not None and (data is not None or not alone):
        both = "two commands, one of them with --data"
        raise ConfigError(
            codes.CLI_OPTION("tasks bring their own rows and metrics", "--lm-eval", lm_eval, both)
        )
    if lm_eval is None and data is None:
        either = "--data F, or tasks of lm-evaluation-harness: --lm-eval A,B"
        raise ConfigError(codes.CLI_OPTION("no rows are named", "--data", "", either))


def _show(evaluations: Sequence[Evaluation], as_json: bool, to: Path | None) -> int:
    """Print evaluations, draw them into ``to`` if given, and return the exit code."""
    from paceline.api.evaluating import table

    rows = [{**asdict(evaluation), "path": str(evaluation.path)} for evaluation in evaluations]
    typer.echo(json.dumps(rows, indent=1) if as_json else table(evaluations))
    for evaluation in evaluations:
        for name, effect in (("rows_skipped", "left out"), ("rows_truncated", "cut off at data.max_length")):
            if evaluation.scores.get(name):
                typer.echo(f"{evaluation.name}: {evaluation.scores[name]:,} rows {effect}", err=True)
    if to is None:
        return 0
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        file = Path(folder) / "evaluations.json"
        file.write_text(json.dumps(rows), encoding="utf-8")
        return call("paceline.watch.summary_plots", "evaluations", str(to), str(file))


def generate(
    subjects: Subjects,
    data: Annotated[str, _DATA],
    to: Annotated[
        str, typer.Option("--to", metavar="OUT", help="The file to write, one JSON line per answer.")
    ],
    checkpoint: Annotated[
        str, typer.Option(metavar="WHICH", help="Which checkpoint of a run: result, latest, best or step-N.")
    ] = "result",
    samples: Samples = 1,
    seed: Seed = 0,
    row_format: RowFormat = "auto",
    columns: Columns = None,
    split: Split = "train",
    max_rows: MaxRows = None,
    batch_size: BatchSize = 8,
    nproc: Nproc = None,
    strategy: Strategy = "copies",
    dtype: Dtype = "float32",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that exists.")] = False,
) -> None:
    """Write a model's answers to the rows of a file.

    Prompts are rendered as in training, with their tools. After a kill the same command continues; the
    answers do not depend on the number of processes. A row that cannot be used is reported before anything is
    generated (data.on_bad_row=skip leaves such rows out).
    """
    from paceline.api.evaluating import generated

    models, settings = split_subjects(subjects)
    job: JsonObject = {
        "models": [*models],
        "data": data_set(data, row_format, columns, split, max_rows),
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
    code, report = generated(job, call)
    if code:
        raise typer.Exit(code)
    before = f", {report['resumed_rows']:,} of them by an earlier command" if report["resumed_rows"] else ""
    left = f"; {report['rows_skipped']:,} rows left out" if report["rows_skipped"] else ""
    typer.echo(f"{report['answers']:,} answers to {report['rows']:,} rows{before}{left}: {report['to']}")


def data_set(path: str, row_format: str, columns: str | None, split: str, max_rows: int | None) -> JsonObject:
    """Return the data set that the options describe. Raises ConfigError."""
    columns_by_name: JsonObject = {}
    for part in (columns or "").split(","):
        name, _, column = part.partition("=")
        if part and not (name and column):
            example = "--columns prompt=question,answer=solution"
            raise ConfigError(codes.CLI_OPTION("this names no column", "--columns", part, example))
        columns_by_name |= {name: column} if part else {}
    return {
        "path": path,
        "format": row_format,
        "columns": columns_by_name,
        "split": split,
        "max_rows": max_rows,
    }


def split_subjects(subjects: list[str]) -> tuple[list[str], list[str]]:
    """Return (models, ``key=value``) among the arguments. Raises ConfigError if no model is named."""
    settings = [word for word in subjects if "=" in word and not Path(word).exists()]
    models = [word for word in subjects if word not in settings]
    if not models:
        expected = "a run directory, a checkpoint or a Hugging Face folder"
        raise ConfigError(codes.CLI_OPTION("no model is named", "command line", " ".join(subjects), expected))
    return models, settings


def chat(
    run: RunFolder,
    prompt: Annotated[str | None, typer.Option(help="Answer this one prompt and exit.")] = None,
    image: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A picture that the first prompt is about; repeat it for more."),
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system message to begin with.")] = None,
    each_alone: Annotated[bool, typer.Option("--forget", help="Answer every line separately.")] = False,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(help="Longest answer in tokens [default: the run's generation.max_new_tokens]."),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 is greedy [default: the run's generation.temperature].")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            help=(
                "Sample from the smallest set of tokens with this probability [default: the run's"
                " generation.top_p]."
            )
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            help="Sample from the k most likely tokens, 0 from all [default: the run's generation.top_k]."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the sampling noise [default: another each time].")
    ] = None,
    strategy: Strategy = "copies",
    nproc: Nproc = None,
) -> None:
    """Chat with a run's model. RUN may also be one checkpoint or an exported folder."""
    options = words(
        prompt=prompt,
        image=None if image is None else [str(file) for file in image],
        system=system,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        strategy=None if strategy == "copies" else strategy,
        nproc=nproc,
        forget=each_alone,
    )
    become("paceline.evaluation.chat", str(run), *options)


def serve(
    run: RunFolder,
    port: Annotated[
        int | None,
        typer.Option("--port", help="The port on 127.0.0.1 [default: 8766, or a free one if it is in use]."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="The model's name in requests [default: the run's name].")
    ] = None,
    dtype: Dtype = "float32",
) -> None:
    """Serve a run's model with OpenAI's API, on this machine only and with a key.

    RUN may also be one checkpoint or a Hugging Face folder. Values missing in a request (temperature, top_p,
    top_k, length) come from the run's generation section. Chat completions, completions, responses and
    models, as vLLM's server answers them; a conversation is rendered as training renders it.
    """
    missing = [package for package in ("starlette", "uvicorn") if find_spec(package) is None]
    if missing:
        raise ConfigError(codes.CLI_SERVE_PACKAGES(found=", ".join(missing)))
    become("paceline.evaluation.serve", str(run), *words(port=port, name=name, dtype=dtype))
