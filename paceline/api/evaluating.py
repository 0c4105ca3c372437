"""``paceline.evaluate`` and the verbs evaluate and generate: jobs for processes that import torch."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, cast

from paceline.api import codes
from paceline.api.arguments import Overrides, Rows, as_json, dataset_setting, importable_name
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError, ExitCode, PacelineError
from paceline.core.json_types import Json, JsonObject
from paceline.core.package import cache_folder
from paceline.core.units import aligned
from paceline.launch.process_spec import import_path, module_argv

if TYPE_CHECKING:
    from paceline.generation.answer import Message

Model = str | PathLike[str]  # a ``Run`` is a path, too
_OWN = ("name", "path", "step", "rows", "tokens", "loss", "perplexity", "token_accuracy")


@dataclass(frozen=True)
class Evaluation:
    """One model's numbers over the rows of a file.

    - ``step``: of a run's checkpoint
    - ``loss``: the mean of -log p over the ``tokens`` with loss
    - ``scores``: other values by name: metrics of answers, rows skipped and truncated

    Losses are None where only answers were requested.
    """

    name: str
    path: Path
    step: int | None = None
    rows: int | None = None
    tokens: int | None = None
    loss: float | None = None
    perplexity: float | None = None
    token_accuracy: float | None = None
    scores: Mapping[str, float | None] = field(default_factory=dict)

    @staticmethod
    def of(report: JsonObject) -> Evaluation:
        """Return the evaluation that a report holds."""
        fields = {name: value for name, value in report.items() if name in _OWN}
        scores = {name: value for name, value in report.items() if name not in _OWN}
        fields |= {"path": Path(str(report["path"])), "scores": scores}  # type: ignore[dict-item]
        return Evaluation(**fields)  # type: ignore[arg-type]  # what the process has written


def evaluate(
    models: Model | Sequence[Model],
    data: Rows,
    *,
    overrides: Overrides | None = None,
    checkpoints: str = "result",
    metrics: Sequence[object] = (),
    losses: bool = True,
    samples: int = 1,
    seed: int = 0,
    judge: Model | None = None,
    batch_size: int = 8,
    nproc: int | None = None,
    strategy: str = "copies",
    dtype: str = "float32",
    quiet: bool = False,
) -> list[Evaluation]:
    """Return the losses of models over rows, and the metrics of their answers.

    ``models``: runs, checkpoints or Hugging Face folders; ``checkpoints``: those of a run to use (result,
    latest, best, all, step-N). ``data``: a path, or rows as ``train`` takes them. ``metrics``: names, or
    imported functions of (answer, expected). ``samples``: answers a row, for pass@k. ``judge``: a model that
    scores the answers. ``overrides``: keys of data, generation and model, e.g. ``{"generation.temperature":
    0.7}``.
    ``nproc``: processes, one a GPU if None; every row counts once on any number of them. ``strategy``:
    copies; or tp or fsdp: the processes share one model, which is larger than a card. Raises ConfigError,
    DataError, and PacelineError if a process fails.
    """
    paths = [models] if isinstance(models, (str, PathLike)) else list(models)
    setting = dataset_setting(data, "data", cache_folder(os.environ))
    job: JsonObject = {
        "models": [os.fspath(model) for model in paths],
        "data": {"path": setting} if isinstance(setting, str) else cast("list[JsonObject]", setting)[0],
        "overrides": settings_of(overrides),
        "checkpoints": checkpoints,
        "metrics": [
            model if isinstance(model, str) else importable_name(model, f"metrics[{index}]")
            for index, model in enumerate(metrics)
        ],
        "losses": losses,
        "samples": samples,
        "seed": seed,
        "judge": None if judge is None else os.fspath(judge),
        "batch_size": batch_size,
        "nproc": nproc,
        "strategy": strategy,
        "dtype": dtype,
    }
    report = _report("evaluate", job, quiet)
    return [Evaluation.of(model) for model in cast("list[JsonObject]", report["evaluations"])]


def generate(
    model: Model,
    prompts: Sequence[str | Sequence[Message]],
    *,
    system: str | None = None,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    batch_size: int = 64,
) -> list[str]:
    """Return the model's answer to each prompt, in order.

    ``model``: a run, one of its checkpoints, or a Hugging Face folder. A prompt is a text, which becomes a
    user message after ``system``, or a whole conversation. Options that are not given come from the run's
    ``generation:`` section; temperature 0 is greedy. Raises ConfigError.
    """
    from paceline.evaluation.open_run import opened
    from paceline.evaluation.prompts import prompts_of
    from paceline.generation.answer import answer
    from paceline.generation.settings import sampling_of

    path = Path(model)
    options: Mapping[str, float | None] = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
    }
    sampling = sampling_of(path, options)
    hf, tokenizer = opened(path)
    hf.generation_config.max_length = None
    opening: list[Message] = [{"role": "system", "content": system}] if system else []
    conversations = [
        [*opening, {"role": "user", "content": prompt}] if isinstance(prompt, str) else [*opening, *prompt]
        for prompt in prompts
    ]
    return answer(hf, tokenizer, prompts_of(tokenizer, conversations), sampling, batch_size=batch_size)


def settings_of(overrides: Overrides | None) -> list[Json]:
    """Return overrides as ``key=value``, as a command line has them."""
    return [f"{key}={json.dumps(as_json(value, key))}" for key, value in (overrides or {}).items()]


@contextmanager
def job_files(job: JsonObject) -> Iterator[tuple[str, str]]:
    """Yield (the job as a file, the file for the report); both last as long as this."""
    with tempfile.TemporaryDirectory(prefix="paceline-job-") as folder:
        file = Path(folder) / "job.json"
        file.write_text(json.dumps(job), encoding="utf-8")
        yield str(file), str(Path(folder) / "report.json")


def _report(verb: str, job: JsonObject, quiet: bool) -> JsonObject:
    """Run a job to its end and return its report, or raise its error."""
    with job_files(job) as (file, report):
        argv = module_argv("paceline.evaluation.main", verb, file, report)
        environ = {**os.environ, **import_path(os.environ)}
        done = subprocess.run(
            argv,
            env=environ,
            stderr=subprocess.DEVNULL if quiet else None,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        try:
            answer: JsonObject = json.loads(Path(report).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            answer = {}
    if done.returncode == ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if done.returncode or not answer:
        rows = cast("list[JsonObject]", answer.get("diagnostics") or [])
        problems = [Diagnostic.from_json(row) for row in rows]
        if not problems:
            problem = f"the process that should {verb} ended with exit code {done.returncode}"
            problems = [codes.API_RUN_FAILED(problem, ", ".join(map(str, cast("list[Json]", job["models"]))))]
        raise (ConfigError if done.returncode == ExitCode.CONFIG else PacelineError)(*problems)
    return answer


def table(evaluations: Sequence[Evaluation]) -> str:
    """Return evaluations as a table: a line a model."""
    names = [
        name
        for name in dict.fromkeys(n for evaluation in evaluations for n in evaluation.scores)
        if name not in _QUIET
    ]
    loss = [
        name for name in _OWN[3:] if any(getattr(evaluation, name) is not None for evaluation in evaluations)
    ]
    rows = [["model", *(name.replace("_", " ") for name in (*loss, *names))]]
    for evaluation in evaluations:
        values = [
            *((name, getattr(evaluation, name)) for name in loss),
            *((name, evaluation.scores.get(name)) for name in names),
        ]
        rows.append([evaluation.name, *(_shown(name, value) for name, value in values)])
    return aligned(rows, numbers_from=1)


_QUIET = ("answers", "rows_skipped", "rows_truncated")  # said beside the table, where there are any
_NO_SHARE = ("loss", "perplexity", "bleu", "judge", "judged", "answer_tokens")


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4f}" if name in _NO_SHARE else f"{value:.1%}"


Call = Callable[..., int]  # ``cli.process.call``


def evaluated(job: JsonObject, call: Call) -> tuple[int, list[Evaluation]]:
    """Run ``paceline evaluate`` in a child of the terminal; return (exit code, evaluations)."""
    code, report = _in_terminal("evaluate", job, call)
    return code, [Evaluation.of(row) for row in cast("list[JsonObject]", report.get("evaluations", []))]


def generated(job: JsonObject, call: Call) -> tuple[int, JsonObject]:
    """Run ``paceline generate`` in a child of the terminal; return (exit code, report)."""
    return _in_terminal("generate", job, call)


def _in_terminal(verb: str, job: JsonObject, call: Call) -> tuple[int, JsonObject]:
    with job_files(job) as (file, report):
        code = call("paceline.evaluation.main", verb, file, report)
        return code, {} if code else json.loads(Path(report).read_text(encoding="utf-8"))
