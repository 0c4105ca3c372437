"""From a config to a rehearsal: where it runs, which stages there are, what is known of the real run."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.config.sections.training_steps import every
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json
from paceline.core.security.file_permissions import written_for
from paceline.core.units import aligned, human_seconds
from paceline.launch.prediction_ledger import expected
from paceline.launch.preflight.plan_job import planned
from paceline.launch.process_spec import Cluster, LaunchOptions
from paceline.plan.hardware.device_kinds import is_accelerator
from paceline.plan.hardware.probe import probe_hardware
from paceline.plan.strategies.replicated import SINGLE
from paceline.rehearsal import codes
from paceline.rehearsal.attempt import Attempt, TrainCommand
from paceline.rehearsal.life import RUN, Report, Stages, live
from paceline.rehearsal.verdict import Line, RealRun, failed, judge, summary
from paceline.verify.sides import TOLERANCES

if TYPE_CHECKING:
    from paceline.config.load import Loaded
    from paceline.config.sections.training import TrainingSection
    from paceline.plan.plan import Plan

Warn = Callable[[Iterable[Diagnostic]], None]
_ALONE = {"training.distributed_strategy": SINGLE.name, "training.parallelism": "null"}
LEAST_STEPS = 4  # two before the save, two after it


@dataclass(frozen=True)
class Rehearsal:
    """``lines``: a verdict each; ``costs``: of the whole run, in words; ``folder``: empty once removed."""

    description: str
    seconds: float
    lines: tuple[Line, ...]
    costs: tuple[str, ...]
    folder: str = ""

    @property
    def failed(self) -> bool:
        """Whether a stage failed, or the real run would."""
        return failed(self.lines)

    def text(self) -> str:
        """Return a line for each stage, what to do about it, and the costs."""
        rows = [["stage", "verdict", ""], *([line.stage, line.verdict, line.text] for line in self.lines)]
        findings = [line.finding.render() for line in self.lines if line.finding is not None]
        head = f"rehearsal of {self.description} in {human_seconds(self.seconds)}"
        kept = [f"its runs are in {self.folder}"] if self.folder else []
        return "\n".join([head, aligned(rows).rstrip("\n"), *findings, *self.costs, *kept]) + "\n"

    def to_json(self) -> dict[str, Json]:
        """Return everything as JSON types."""
        lines: list[Json] = []
        for line in self.lines:
            finding: Json = None if line.finding is None else line.finding.to_json()
            lines.append({**asdict(line), "finding": finding})
        return {
            "rehearsal": self.description,
            "seconds": self.seconds,
            "failed": self.failed,
            "lines": lines,
            "costs": list(self.costs),
            "folder": self.folder,
        }


def rehearse(
    loaded: Loaded,
    config: str,
    overrides: Sequence[str],
    options: LaunchOptions,
    *,
    steps: int,
    limit: float,
    to: Path | None,
    report: Report,
    warn: Warn,
) -> Rehearsal:
    """Live the run's life in small and judge it.

    ``config``, ``overrides``, ``options``: of ``paceline train``; ``limit``: seconds of a start; ``to``: keep
    the runs there. Raises ConfigError as ``train`` does before its start.
    """
    plan, warnings = planned(loaded, launcher=options.launcher)
    warn((*loaded.notes, *warnings))
    folder = (to or Path(f"{plan.run_dir}-rehearsal")).absolute()
    cluster, began = Cluster.of(loaded.config.launch), time.monotonic()
    leads, launched = cluster.node_rank == 0, {key: str(value) for key, value in options.flags().items()}
    if loaded.config.launch.nodes:  # a rank that is killed on purpose is to cost no node
        launched |= {"launch.nodes": "null", "launch.nnodes": str(plan.num_nodes)}
    if leads and not _ours(folder):
        raise ConfigError(codes.REHEARSE_FOLDER("--to" if to else "training.output_dir", str(folder)))
    if (most := loaded.config.training.max_steps) > 0:
        steps = min(steps, most)
    nproc, smaller = plan.world_size // plan.num_nodes, plan.world_size // 2
    stages = Stages(
        steps,
        nproc,
        cluster.node_rank,
        kills=cluster.node_rank == plan.num_nodes - 1,
        leads=leads,
        evaluates=loaded.config.training.eval_strategy != "no",
        launch=launched,
        smaller=(nproc // 2, smaller) if nproc % 2 == 0 else None,
        # any strategy's checkpoint goes on under any other, and most need more than one rank
        in_smaller=_ALONE if smaller == 1 else {},
    )
    launcher = ["--launcher", options.launcher] if options.launcher else []
    start = TrainCommand(config, overrides, launcher, folder, secrets.token_hex(8), limit)
    try:
        with written_for(folder, loaded.config.training.output_access):
            folder.mkdir(parents=True, exist_ok=True)
            life = live(start, stages, report)
            run = _real_run(plan, loaded.config.training, life.first, folder)
    finally:
        if to is None and leads:
            shutil.rmtree(folder, ignore_errors=True)
    lines = judge(life, run)
    return Rehearsal(
        f"{config}: {plan.strategy} on {plan.world_size} rank{'s' * (plan.world_size > 1)}",
        time.monotonic() - began,
        tuple(lines),
        (*summary(lines, run), *_left_out(loaded.config.training)),
        str(folder) if folder.exists() else "",
    )


def _ours(folder: Path) -> bool:
    """Whether nothing is there that the rehearsal would overwrite or remove: another node may have begun."""
    if not folder.exists():
        return True
    return folder.is_dir() and all(entry.name == f"{RUN}.log" for entry in folder.iterdir())


def _left_out(training: TrainingSection) -> Iterator[str]:
    """Yield what the run would do and its rehearsal does not."""
    trackers = [name for name in training.report_to if name != "none"]
    if trackers:
        yield f"not rehearsed: trackers ({', '.join(trackers)})"
    if training.checkpoint_url:
        yield f"not rehearsed: uploads to {training.checkpoint_url}"


def _real_run(plan: Plan, training: TrainingSection, first: Attempt, folder: Path) -> RealRun:
    total = first.total_steps or 1
    last = first.steps[-1] if first.steps else None
    epoch = round(last.step / last.epoch) if last is not None and last.epoch > 0 else total
    by_word = {"no": None, "epoch": max(1, epoch)}
    eval_steps = by_word.get(
        training.eval_strategy, every(training.eval_steps or training.logging_steps, total)
    )
    save_steps = by_word.get(training.save_strategy, every(training.save_steps, total))
    on_cpu = not is_accelerator(plan.device)
    hardware = probe_hardware(os.environ, use_cpu=on_cpu)
    forecast = expected(plan, uncorrected=not on_cpu)  # on a CPU only what its own runs have corrected
    tolerance = TOLERANCES[plan.precision.compute].loss
    return RealRun(
        eval_steps,
        eval_steps if training.save_strategy == "best" else save_steps,
        training.save_total_limit,
        forecast.bytes if forecast is not None else None,
        hardware.memory_bytes // (plan.world_size // plan.num_nodes if on_cpu else 1),
        shutil.disk_usage(folder).free,
        tolerance,
        0.0 if on_cpu else tolerance,
    )
