"""Several runs: sweeps, tables, differences of two configs, and the step at which two trainings diverge."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.api.arguments import bad_argument
from paceline.api.run import Run, existing_run
from paceline.config.source import shown
from paceline.core.files import listed, read_run_file
from paceline.core.json_types import Json, JsonObject, as_object, leaves
from paceline.core.rundir import RunDir
from paceline.core.units import aligned, human_seconds

DEEPEST = 3  # folders below the given one in which runs are looked for
_DIFFERENT = 1e-6  # of two losses, relative
_IDLE = ("training.output_dir", "training.experiment_name")  # every two runs differ in these


@dataclass(frozen=True)
class RunFacts:
    """One line of the table of runs."""

    path: str
    outcome: str
    step: int
    algorithm: str
    strategy: str
    loss: float | None
    eval_loss: float | None
    seconds: float
    eval_reward: float | None = None

    @staticmethod
    def of(run: Run, name: str) -> RunFacts:
        """Return the facts of a run: its last loss, and the best of its evaluations."""
        history = run.history
        last = history.steps.get(history.last_step)
        plan = _plan(RunDir.at(run.path))
        return RunFacts(
            name,
            run.outcome,
            history.last_step,
            str(plan.get("algorithm", "")),
            str(plan.get("strategy", "")),
            None if last is None else last.loss,
            min(_measured(run, "eval_loss"), default=None),
            history.seconds,
            max(_measured(run, "eval_reward"), default=None),
        )


def _measured(run: Run, metric: str) -> list[float]:
    """Return the run's evaluation values of ``metric``."""
    return [e.metrics[metric] for e in run.history.evals.values() if metric in e.metrics]


def _plan(run: RunDir) -> JsonObject:
    """Return the run's plan; empty where it is not written yet, or was deleted meanwhile."""
    try:
        return as_object(json.loads(read_run_file(run.plan_json)))
    except (FileNotFoundError, ValueError):
        return {}


def runs_below(folder: Path, depth: int = DEEPEST) -> Iterator[Path]:
    """Yield the run directories in a folder (itself, if it is one), by name."""
    if RunDir.at(folder).exists():
        yield folder
        return
    if depth:
        for inner in listed(folder):
            if inner.is_dir() and not inner.is_symlink() and not inner.name.startswith("."):
                yield from runs_below(inner, depth - 1)


def facts_below(folder: Path) -> list[RunFacts]:
    """Return the facts of every run in a folder. Raises ConfigError (``api.no_run``) if there is none."""
    paths = list(runs_below(folder))
    if not paths:
        existing_run(folder)
    return [
        RunFacts.of(Run(path), str(path.relative_to(folder)) if path != folder else path.name)
        for path in paths
    ]


def table(rows: Sequence[RunFacts]) -> str:
    """Return runs as a table: a line a run."""
    cells = [["run", "outcome", "step", "algorithm", "strategy", "loss", "best eval", "time"]]
    for row in rows:
        best = row.eval_reward if row.eval_loss is None else row.eval_loss
        numbers = ["-" if value is None else f"{value:.4f}" for value in (row.loss, best)]
        time = human_seconds(row.seconds)
        cells.append([row.path, row.outcome, str(row.step), row.algorithm, row.strategy, *numbers, time])
    return aligned(cells)


def config_differences(first: Run, second: Run) -> dict[str, tuple[Json, Json]]:
    """Return the keys whose effective values differ, with both values."""
    ours, theirs = (leaves(_config(run)) for run in (first, second))
    return {
        key: (ours.get(key), theirs.get(key))
        for key in dict.fromkeys((*ours, *theirs))
        if ours.get(key) != theirs.get(key) and key not in _IDLE
    }


def _config(run: Run) -> JsonObject:
    config: JsonObject = json.loads(read_run_file(run.path / "config.json"))
    return config


def parted(first: Run, second: Run) -> dict[str, int | None]:
    """Return the first common step at which two runs differ in rows, learning rate or loss.

    None if they never differ.
    """
    steps: dict[str, int | None] = dict.fromkeys(("rows", "learning rate", "loss"))
    for step in sorted(first.history.steps.keys() & second.history.steps.keys()):
        a, b = first.history.steps[step], second.history.steps[step]
        differ = {
            "rows": a.sample_digest != b.sample_digest,
            "learning rate": not math.isclose(a.lr, b.lr, rel_tol=1e-9, abs_tol=1e-15),
            "loss": not math.isclose(a.loss, b.loss, rel_tol=_DIFFERENT),
        }
        for name, differs in differ.items():
            if differs and steps[name] is None:
                steps[name] = step
    return steps


def comparison(first: Run, second: Run) -> str:
    """Return the differences of two runs as text."""
    lines = [table([RunFacts.of(run, str(run.path)) for run in (first, second)]), ""]
    differing = config_differences(first, second)
    lines.append("config" if differing else "config      no difference")
    for key, values in differing.items():
        lines.append(f"  {key}")
        lines += [f"    {sign} {shown(key, value, 80)}" for sign, value in zip("-+", values, strict=True)]
    common = len(first.history.steps.keys() & second.history.steps.keys())
    lines.append("")
    for name, step in parted(first, second).items():
        where = (
            f"differs from step {step} on" if step is not None else f"the same at all {common} common steps"
        )
        lines.append(f"{name:<13} {where}")
    return "\n".join(lines)


MOST_RUNS = 1000
_UNSAFE = re.compile(r"[^A-Za-z0-9._=+-]+")
_LONGEST = 120


@dataclass(frozen=True)
class SweepRun:
    """One run: its settings as ``key=value``, and what to do: train, resume, again (it left no checkpoint) or
    nothing (done)."""

    name: str
    path: Path
    settings: tuple[str, ...]
    todo: str


def planned_runs(
    config: Path, arguments: Sequence[str], folder: Path, fixed: Sequence[str] = ()
) -> list[SweepRun]:
    """Return the runs of a sweep, in the order of the values. ``fixed``: settings that all have.

    Raises ConfigError for any that cannot start.
    """
    from paceline.launch.preflight.load_config import load

    axes = [values_of(argument) for argument in arguments]
    if not any(len(values) > 1 for _, values in axes):
        remedy = "paceline sweep CONFIG training.learning_rate=1e-4,3e-4"
        raise bad_argument(
            "no key has several values, so there is nothing to compare",
            "command line",
            " ".join(arguments),
            remedy,
        )
    combinations = list(itertools.islice(itertools.product(*(values for _, values in axes)), MOST_RUNS + 1))
    if len(combinations) > MOST_RUNS:
        raise bad_argument(
            f"these are more than {MOST_RUNS:,} runs",
            "command line",
            " ".join(arguments),
            "give fewer values",
        )
    runs = []
    for chosen in combinations:
        settings = [f"{key}={value}" for (key, _), value in zip(axes, chosen, strict=True)]
        several = [
            f"{key.rpartition('.')[2]}={value}"
            for (key, values), value in zip(axes, chosen, strict=True)
            if len(values) > 1
        ]
        name = _UNSAFE.sub("_", ",".join(several))[:_LONGEST]
        path = folder / name
        settings.append(f"training.output_dir={path}")
        url = load(config, [*fixed, *settings]).config.training.checkpoint_url
        if url is not None:  # each run writes to a URL of its own
            settings.append(f"training.checkpoint_url={url.rstrip('/')}/{name}")
        todo = _todo(path)
        if todo == "resume":
            settings.append("training.resume_from_checkpoint=latest")
        elif todo == "again":
            settings.append("training.overwrite_output_dir=true")  # renames what is there
        runs.append(SweepRun(name, path, tuple(settings), todo))
    if len({run.name for run in runs}) < len(runs):
        raise bad_argument(
            "two runs would have the same folder: a value is given twice, or differs in signs alone",
            "command line",
            " ".join(arguments),
            "give each value once",
        )
    return runs


def values_of(setting: str) -> tuple[str, list[str]]:
    """Return (key, values) of ``key=a,b,c``; commas inside brackets and braces do not separate."""
    key, equals, text = setting.partition("=")
    if not key or not equals or not text:
        raise bad_argument(
            "this is no key with values", "command line", setting, "training.learning_rate=1e-4,3e-4"
        )
    values, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            values.append("")
        else:
            values[-1] += letter
    return key, [value.strip() for value in values]


def _todo(path: Path) -> str:
    if not RunDir.at(path).exists():
        return "train"
    run = Run(path)
    if run.outcome in ("completed", "early_stopped"):
        return "done"
    return "resume" if any(checkpoint.problem is None for checkpoint in run.checkpoints()) else "again"
