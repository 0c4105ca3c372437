"""``paceline checkpoints list``: what a run has, with age, metric and verdict. No torch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.checkpoint.format.folder_layout import BEST, LATEST, VERIFIED, CheckpointFolder, read_hint, scan
from paceline.checkpoint.format.verify_files import read_state
from paceline.checkpoint.save.retention import last_verified
from paceline.core.errors import CheckpointError
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.core.rundir import RunDir
from paceline.core.units import aligned, human_bytes, human_seconds
from paceline.runlog.history import load_history

LOSS = "eval_loss"


@dataclass(frozen=True)
class ListedCheckpoint:
    """One checkpoint. ``path``: of one in object storage its URL; ``verdict``: ``verified`` (every byte,
    last), ``complete`` (all files with their sizes), ``committed`` (at a URL) or what is wrong.
    """

    name: str
    path: Path | str
    step: int
    num_bytes: int | None
    strategy: str
    world_size: int | None
    age: float | None  # seconds
    metric: str
    value: float | None
    marks: tuple[str, ...]
    verdict: str

    def to_json(self) -> JsonObject:
        return {
            "name": self.name,
            "path": str(self.path),
            "step": self.step,
            "bytes": self.num_bytes,
            "strategy": self.strategy,
            "world_size": self.world_size,
            "age_seconds": self.age,
            "metric": self.metric,
            "value": self.value,
            "marks": list(self.marks),
            "verdict": self.verdict,
        }


def list_checkpoints(folder: Path) -> list[ListedCheckpoint]:
    """Return the checkpoints in a run directory or in its ``checkpoints`` folder, oldest first."""
    run = RunDir.at(folder)
    checkpoints = run.checkpoints if run.checkpoints.is_dir() else folder
    evals = load_history(RunDir.at(checkpoints.parent)).evals
    measured = {step: event.metrics for step, event in evals.items()}
    marks = {
        LATEST: read_hint(checkpoints / LATEST),
        BEST: read_hint(checkpoints / BEST),
        VERIFIED: last_verified(checkpoints),
    }
    return [_listed(checkpoint, marks, measured) for checkpoint in scan(checkpoints)]


def as_table(rows: list[ListedCheckpoint]) -> str:
    """Return the rows as text with a header."""
    cells = [("checkpoint", "step", "size", "strategy", "age", "metric", "verdict")]
    for row in rows:
        strategy = f"{row.strategy} × {row.world_size}" if row.world_size else row.strategy
        value = "" if row.value is None else f"{row.metric} {row.value:.4g}"
        marks = f" ({', '.join(row.marks)})" if row.marks else ""
        link = f" -> {row.path.resolve()}" if isinstance(row.path, Path) and row.path.is_symlink() else ""
        size = "" if row.num_bytes is None else human_bytes(row.num_bytes)
        age = "" if row.age is None else human_seconds(row.age)
        cells.append((row.name + marks + link, str(row.step), size, strategy, age, value, row.verdict))
    return aligned(cells)


def _listed(
    checkpoint: CheckpointFolder, marks: Mapping[str, str | None], measured: Mapping[int, Mapping[str, float]]
) -> ListedCheckpoint:
    manifest, state, problem = checkpoint.manifest, JsonObject(), checkpoint.problem
    if problem is None:
        try:
            state = read_state(checkpoint.path)
        except CheckpointError as error:
            problem = error
    metric, value = _metric(state, measured.get(checkpoint.step, {}))
    first = problem.diagnostics[0] if problem else None
    mine = tuple(mark for mark, name in marks.items() if name == checkpoint.name)
    sound = VERIFIED if VERIFIED in mine else "complete"
    return ListedCheckpoint(
        checkpoint.name,
        checkpoint.path,
        checkpoint.step,
        manifest.total_bytes if manifest else None,
        str(state.get("strategy") or ""),
        manifest.world_size if manifest else None,
        max(0.0, time.time() - manifest.created) if manifest else None,
        metric,
        value,
        tuple(mark for mark in mine if mark != VERIFIED),
        sound if first is None else f"{first.what}: {first.found}",
    )


def _metric(state: JsonObject, measured: Mapping[str, float]) -> tuple[str, float | None]:
    """Return the run's metric and its value at this step: as measured, or as the best so far."""
    training, train = as_object(as_object(state.get("config")).get("training")), as_object(state.get("train"))
    configured: Json = training.get("metric_for_best_model")
    metric = str(configured) if configured else LOSS
    for name in (metric, f"eval_{metric}"):
        if name in measured:
            return name, measured[name]
    best = train.get("best_metric")
    if isinstance(best, float) and train.get("best_step") == train.get("step"):
        return metric, best
    return metric, None
