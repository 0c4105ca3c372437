"""Several runs side by side: a table, what two configs differ in, and where two trainings part."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.api.run import Run, existing_run
from paceline.config.render.diff import leaves
from paceline.config.source import shown
from paceline.core.files import listed, read_run_file
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.core.rundir import RunDir
from paceline.core.text_columns import aligned
from paceline.core.units import human_seconds

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

    @staticmethod
    def of(run: Run, name: str) -> RunFacts:
        """Return the facts of a run: its last loss, and the best of its evaluations."""
        history = run.history
        last = history.steps.get(history.last_step)
        evals = [one.metrics["eval_loss"] for one in history.evals.values() if "eval_loss" in one.metrics]
        plan = _plan(RunDir.at(run.path))
        return RunFacts(
            name,
            run.outcome,
            history.last_step,
            str(plan.get("algorithm", "")),
            str(plan.get("strategy", "")),
            None if last is None else last.loss,
            min(evals, default=None),
            history.seconds,
        )


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
    found = list(runs_below(folder))
    if not found:
        existing_run(folder)
    return [
        RunFacts.of(Run(path), str(path.relative_to(folder)) if path != folder else path.name)
        for path in found
    ]


def table(rows: Sequence[RunFacts]) -> str:
    """Return runs as a table: a line a run."""
    cells = [["run", "outcome", "step", "algorithm", "strategy", "loss", "best eval", "time"]]
    for row in rows:
        numbers = ["-" if value is None else f"{value:.4f}" for value in (row.loss, row.eval_loss)]
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
    found: JsonObject = json.loads(read_run_file(run.path / "config.json"))
    return found


def parted(first: Run, second: Run) -> dict[str, int | None]:
    """Return the first common step at which two runs had other rows, another learning rate, another loss.

    None: at no common step.
    """
    found: dict[str, int | None] = dict.fromkeys(("rows", "learning rate", "loss"))
    for step in sorted(first.history.steps.keys() & second.history.steps.keys()):
        a, b = first.history.steps[step], second.history.steps[step]
        differ = {
            "rows": a.sample_digest != b.sample_digest,
            "learning rate": not math.isclose(a.lr, b.lr, rel_tol=1e-9, abs_tol=1e-15),
            "loss": not math.isclose(a.loss, b.loss, rel_tol=_DIFFERENT),
        }
        for name, differs in differ.items():
            if differs and found[name] is None:
                found[name] = step
    return found


def comparison(first: Run, second: Run) -> str:
    """Return what two runs differ in as text."""
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
