"""The stages: train, evaluate, save, be killed, go on, be stopped, change the world, export."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.core.errors import ExitCode
from paceline.core.rundir import RunDir
from paceline.launch.process_spec import import_path, module_argv
from paceline.rehearsal.attempt import Attempt, TrainCommand, kill_last_rank, stop
from paceline.runlog.events import CheckpointSaved, Record, Step

RUN, OTHER, EXPORT = "run", "other-world", "export"
BEYOND = 3  # steps after the save that are lost by the kill and trained again
_TAIL_LINES = 12

Report = Callable[[str], None]


@dataclass(frozen=True)
class ExportResult:
    """The model of the run as a Hugging Face folder; ``problem``: why there is none."""

    seconds: float
    bytes: int
    problem: str = ""


@dataclass(frozen=True)
class Life:
    """What the stages did; None: not tried.

    ``world_size``: of ``other``.
    """

    first: Attempt
    resumed: Attempt | None = None
    other: Attempt | None = None
    world_size: int = 0
    exported: ExportResult | None = None


@dataclass(frozen=True)
class Stages:
    """Which stages there are.

    - ``steps``: optimizer steps of the first start; a checkpoint is saved after half of them
    - ``nproc``, ``node_rank``: ranks of this node, and its number
    - ``kills``: this node runs the last rank
    - ``launch``: settings of nodes and ranks
    - ``smaller``: ranks of a node and of all nodes in the smaller world; None: none is tried
    - ``in_smaller``: further settings there
    - ``leads``: this node exports; ``evaluates``: the run has evaluations
    """

    steps: int
    nproc: int
    node_rank: int
    kills: bool
    leads: bool
    evaluates: bool
    launch: Mapping[str, str]
    smaller: tuple[int, int] | None
    in_smaller: Mapping[str, str]

    @property
    def saved(self) -> int:
        """The step after which the first checkpoint is saved."""
        return max(1, self.steps // 2)

    @property
    def settings(self) -> dict[str, str]:
        """What a rehearsal changes in the config."""
        evaluation = {"training.eval_strategy": "steps", "training.eval_steps": str(self.saved)}
        return {
            **self.launch,
            **(evaluation if self.evaluates else {}),
            "training.save_strategy": "steps",
            "training.save_steps": str(self.saved),
            "training.save_total_limit": "null",
            "training.load_best_model_at_end": "false",
            "training.early_stopping_patience": "null",
            "training.checkpoint_url": "null",
            "training.report_to": "none",
            "launch.max_restarts": "0",
        }


def live(start: TrainCommand, stages: Stages, report: Report) -> Life:
    """Go through the stages; a stage that fails ends the life."""
    report(f"start, {stages.steps} steps, evaluation, a save at step {stages.saved}, then a rank is killed")
    fresh = {**stages.settings, "training.resume_from_checkpoint": "null"}
    rank = stages.node_rank * stages.nproc
    act = kill_last_rank if stages.kills else _watch
    first = start.start(RUN, fresh, rank, _saved_and_reached(stages.steps), act)
    life = Life(first)
    if not first.saves or first.late or (first.acted is None and first.code != ExitCode.OK):
        return life
    if goes_on(first):
        life = _lived_again(life, start, stages, report)
    if stages.leads:
        report("the model is exported and opened again")
        life = replace(life, exported=_export(start.folder))
    return life


def goes_on(first: Attempt) -> bool:
    """Whether steps are left after the checkpoint from which a resume would start."""
    return bool(first.saves) and resume_point(first).step < (first.total_steps or math.inf)


def _lived_again(life: Life, start: TrainCommand, stages: Stages, report: Report) -> Life:
    """Go on from the checkpoint, with the same ranks and with fewer."""
    point, rank = resume_point(life.first), stages.node_rank * stages.nproc
    report(f"the same run goes on from step {point.step}; then it is stopped")
    resuming = {**stages.settings, "training.resume_from_checkpoint": point.path}
    resumed = start.start(RUN, resuming, rank, _reached(point.step + BEYOND), stop)
    life = replace(life, resumed=resumed)
    if stages.smaller is not None:
        nproc, world_size = stages.smaller
        report(f"the same checkpoint goes on with {world_size} rank{'s' * (world_size > 1)}")
        # In a run directory of its own: the checkpoint is another run's
        other = start.start(
            OTHER,
            {**resuming, **stages.in_smaller, "launch.nproc": str(nproc)},
            stages.node_rank * nproc,
            _reached(point.step + BEYOND),
            stop,
        )
        life = replace(life, other=other, world_size=world_size)
    return life


def resume_point(first: Attempt) -> CheckpointSaved:
    """Return the newest checkpoint that steps of the killed start follow, else the newest."""
    last = first.steps[-1].step if first.steps else 0
    return next((saved for saved in reversed(first.saves) if saved.step < last), first.saves[-1])


def _reached(step: int) -> Callable[[Sequence[Record]], bool]:
    def enough(records: Sequence[Record]) -> bool:
        return any(isinstance(record.event, Step) and record.event.step >= step for record in records)

    return enough


def _saved_and_reached(step: int) -> Callable[[Sequence[Record]], bool]:
    """The step, and a checkpoint: one that is written beside the steps may come later."""
    reached = _reached(step)

    def enough(records: Sequence[Record]) -> bool:
        return reached(records) and any(isinstance(record.event, CheckpointSaved) for record in records)

    return enough


def _watch(launcher: int, mark: str) -> None:
    """Another node's rank is killed; this node sees it."""


def _export(folder: Path) -> ExportResult:
    target = folder / EXPORT
    shutil.rmtree(target, ignore_errors=True)
    began = time.time()
    argv = module_argv("paceline.cli.main", "export", str(RunDir.at(folder / RUN).root), "--to", str(target))
    environ = {**os.environ, **import_path(os.environ)}
    done = subprocess.run(
        argv, env=environ, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file()) if target.is_dir() else 0
    problem = "" if done.returncode == 0 else "\n".join(done.stderr.strip().splitlines()[-_TAIL_LINES:])
    return ExportResult(
        time.time() - began, size, problem or ("" if done.returncode == 0 else f"exit code {done.returncode}")
    )
