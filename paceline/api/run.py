"""A run directory, opened for reading: result, plan, history, findings, checkpoints. Nothing is changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.api import codes
from paceline.api.arguments import bad_argument
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.files import read_run_file
from paceline.core.json_types import JsonObject, as_object
from paceline.core.rundir import RunDir
from paceline.runlog.events import Error, Event, Notice, read_events
from paceline.runlog.history import History, load_history
from paceline.watch.page.glance import LIVE, glance, read_start

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from paceline.checkpoint.export.exporters import Exporter
    from paceline.plan.plan import Plan


@dataclass(frozen=True)
class Checkpoint:
    """A published checkpoint.

    - ``bytes``: of its files
    - ``best``, ``latest``: whether the run marks it so
    - ``problem``: why it cannot be used (sizes are checked, contents are not), or None
    """

    step: int
    path: Path
    bytes: int
    latest: bool
    best: bool
    problem: Diagnostic | None = None


def export(
    run: str | PathLike[str],
    to: str | PathLike[str],
    *,
    checkpoint: str = "result",
    dtype: str = "float32",
    role: str = "policy",
    merge: bool = False,
    overwrite: bool = False,
    exporters: Sequence[Exporter] | None = None,
    max_shard_size: str = "5GB",
) -> Path:
    """Write the model of a run, or of one checkpoint, as a Hugging Face folder, and return the folder.

    - ``checkpoint``: latest, best, step-N, or the one that the run's result names
    - ``dtype``: float32, bfloat16 or float16
    - ``role``: the model of the run to export
    - ``merge``: merge an adapter into its base
    - ``overwrite``: replace a folder that is not empty
    - ``exporters``: names or functions of the folder, in place of the run's training.exporters
    - ``max_shard_size``: largest weight file (500MB, 2GiB)

    Raises ConfigError and CheckpointError.
    """
    from paceline.checkpoint.export.exporters import exporters_of
    from paceline.checkpoint.export.hf_export import export_hf
    from paceline.checkpoint.export.main import choose, shard_bytes

    notes: list[Diagnostic] = []
    path = choose(Path(run), checkpoint, notes)
    target = Path(to).expanduser().absolute()
    also = exporters_of(exporters, path)
    return export_hf(
        path,
        target,
        dtype,
        role=role,
        overwrite=overwrite,
        merge=merge,
        exporters=also,
        max_shard_bytes=shard_bytes(max_shard_size),
        verified=True,
    ).path


class Run:
    """A run directory, finished or still running. Each property reads its file when it is first used."""

    def __init__(self, path: str | PathLike[str]) -> None:
        """Raises ConfigError (``api.no_run``) if no run is there."""
        self._dir = RunDir.at(existing_run(Path(path)))

    @staticmethod
    def open(path: str | PathLike[str]) -> Run:
        """Open the run at ``path``. Raises ConfigError (``api.no_run``)."""
        return Run(path)

    @property
    def path(self) -> Path:
        return self._dir.root

    def __fspath__(self) -> str:
        return str(self.path)

    @cached_property
    def plan(self) -> Plan:
        """The run's plan. Raises ConfigError if it is missing or another version wrote it."""
        from paceline.plan.plan import Plan

        try:
            written = json.loads(read_run_file(self._dir.plan_json))
        except (FileNotFoundError, ValueError) as error:
            raise ConfigError(
                codes.API_NO_RUN(
                    "this run has no readable plan.json", str(self._dir.plan_json), str(error)[:200]
                )
            ) from error
        return Plan.from_json(written)

    @cached_property
    def result(self) -> JsonObject:
        """``result.json``: outcome, exit code, step, checkpoint and more; empty while the run goes on."""
        try:
            content: JsonObject = json.loads(read_run_file(self._dir.result_json))
        except (FileNotFoundError, ValueError):
            return {}
        return content

    @cached_property
    def history(self) -> History:
        """Steps, evaluations, checkpoints and errors by step, of all attempts as one."""
        return load_history(self._dir)

    @property
    def outcome(self) -> str:
        """``completed``, ``early_stopped``, ``stopped``, ``failed``, ``running`` (also while it starts), or
        ``vanished``: its processes are gone and wrote no result. This is the state on the page of ``paceline
        watch``.
        """
        state = as_object(glance(self._dir)["state"])["name"]
        return "running" if state in LIVE else str(state)

    def events(self, rank: int = 0) -> list[Event]:
        """Return all events that a rank has written, oldest first."""
        return [record.event for record in read_events(self._dir.events(rank))]

    @cached_property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """The run's warnings, notes and errors of all attempts, each once."""
        findings: dict[str, Diagnostic] = {
            event.diagnostic.render(): event.diagnostic
            for event in self.events()
            if isinstance(event, (Notice, Error))
        }
        for error in self.history.errors:
            findings[error.diagnostic.render()] = error.diagnostic
        # An end that no rank could write into its events
        start, written = read_start(self._dir), self.result.get("diagnostics")
        ends = [start.cause] if start is not None and start.cause else []
        for finding in [*ends, *(written if isinstance(written, list) else ())]:
            with suppress(KeyError, TypeError, ValueError):
                diagnostic = Diagnostic.from_json(as_object(finding))
                if (diagnostic.code, diagnostic.what) not in {(d.code, d.what) for d in findings.values()}:
                    findings[diagnostic.render()] = diagnostic
        return tuple(findings.values())

    def arrays(self, kind: str = "steps") -> dict[str, NDArray[np.float64]]:
        """Return the history as columns of equal length: ``steps`` (loss, lr, grad_norm, tokens and every
        other number of the steps) or ``evals``. NaN where a row has no value.
        """
        import numpy as np

        rows = [dict(row) for row in self._rows(kind)]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: np.array([row.get(name, np.nan) for row in rows], dtype=np.float64) for name in names}

    def frame(self, kind: str = "steps") -> pd.DataFrame:
        """Return ``arrays`` as a pandas frame with the step as its index. Needs pandas."""
        import pandas as pd

        table = pd.DataFrame(self.arrays(kind))
        return table.set_index("step") if "step" in table else table

    def _rows(self, kind: str) -> Iterator[dict[str, float]]:
        if kind == "evals":
            for step, evaluation in self.history.evals.items():
                yield {"step": step, **evaluation.metrics, "seconds": evaluation.seconds}
            return
        if kind != "steps":
            raise bad_argument("a run has no such table", "kind", repr(kind), "steps or evals")
        for step, event in self.history.steps.items():
            numbers = {
                "step": step,
                "epoch": event.epoch,
                "loss": event.loss,
                "lr": event.lr,
                "grad_norm": event.grad_norm,
                "tokens": event.tokens,
                "step_seconds": event.step_seconds,
                "data_seconds": event.data_seconds,
                "tokens_per_second": event.tokens_per_second,
                "memory_bytes": self.history.peak_memory.get(step),
                **(event.losses if len(event.losses) > 1 else {}),
                **event.extras,
            }
            yield {name: value for name, value in numbers.items() if value is not None}

    def checkpoints(self) -> list[Checkpoint]:
        """Return the run's checkpoints, oldest first."""
        return checkpoints(self.path)

    export = export

    def __repr__(self) -> str:
        steps = self.history.last_step
        last = self.history.steps.get(steps)
        loss = f", loss {last.loss:.4f}" if last is not None else ""
        return f"Run({str(self.path)!r}: {self.outcome} after {steps} steps{loss})"

    def _repr_html_(self) -> str:
        from paceline.api.html import run_html

        return run_html(self)


def checkpoints(run: str | PathLike[str]) -> list[Checkpoint]:
    """Return the checkpoints of a run, oldest first, the damaged ones with their ``problem``.

    Raises ConfigError (``api.no_run``).
    """
    from paceline.checkpoint.format.verify_files import read_hint, scan

    at = RunDir.at(existing_run(Path(run)))
    latest, best = read_hint(at.latest), read_hint(at.checkpoints / "best")
    return [
        Checkpoint(
            checkpoint.step,
            checkpoint.path,
            checkpoint.manifest.total_bytes if checkpoint.manifest is not None else 0,
            checkpoint.name == latest,
            checkpoint.name == best,
            checkpoint.problem.diagnostics[0] if checkpoint.problem is not None else None,
        )
        for checkpoint in scan(at.checkpoints)
    ]


def existing_run(run: Path) -> Path:
    """Return ``run`` when it is a run directory.

    Raises ConfigError when it does not exist or holds no run.
    """
    if not run.is_dir():
        raise ConfigError(codes.API_NO_RUN("there is no such run directory", str(run), hint=_known_runs(run)))
    if not RunDir.at(run).exists():
        raise ConfigError(
            codes.API_NO_RUN("this directory is not a run (no plan.json)", str(run), hint=_known_runs(run))
        )
    return run


def _known_runs(run: Path) -> str:
    near = [Path("outputs"), run, run.parent]
    runs = sorted(
        {
            str(p)
            for folder in near
            if folder.is_dir()
            for p in folder.iterdir()
            if p.is_dir() and RunDir.at(p).exists()
        }
    )
    return (
        "give a run directory; available: " + ", ".join(runs[:5])
        if runs
        else "give a run directory, e.g. outputs/NAME"
    )
