"""One start of ``paceline train``, watched by its events until it is killed, stopped or ends by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from paceline.core.diagnostics import Diagnostic
from paceline.core.rundir import RunDir
from paceline.launch import processes
from paceline.launch.prediction_ledger import VARIABLE
from paceline.launch.process_spec import import_path, module_argv
from paceline.runlog.events import CheckpointSaved, Error, Eval, Event, EventTail, Record, RunStarted, Step

MARK = "PACELINE_REHEARSAL"  # in the environment of all that a rehearsal starts
OUTPUT = "training.output_dir"
LOOK_SECONDS = 0.02  # between looks at the events: short beside a step
_GONE_SECONDS = 5.0  # after the launcher's end, for processes that are just ending
_END_SECONDS = 30.0  # from the limit's SIGTERM to SIGKILL
_TAIL_LINES = 12
E_ = TypeVar("E_", bound=Event)


@dataclass(frozen=True)
class Attempt:
    """What one start did.

    - ``began``, ``ended``: unix seconds of its process; ``acted``: of the kill or the stop, None without one
    - ``code``: exit code of the launcher
    - ``records``: the events of the node's first rank, oldest first
    - ``left``: pids that outlived the launcher
    - ``late``: it was ended at the limit of its time
    - ``output_end``: the end of its output
    """

    began: float
    ended: float
    acted: float | None
    code: int
    records: tuple[Record, ...]
    left: tuple[int, ...] = ()
    late: bool = False
    output_end: str = ""

    def events(self, kind: type[E_]) -> list[E_]:
        """Return its events of a kind."""
        return [record.event for record in self.records if isinstance(record.event, kind)]

    @property
    def steps(self) -> list[Step]:
        return self.events(Step)

    @property
    def step_seconds(self) -> list[float]:
        """Seconds of each step but the first, callbacks included, without evaluations and saves."""
        seconds: list[float] = []
        since, beside = None, 0.0
        for time_, event in ((record.time, record.event) for record in self.records):
            if isinstance(event, Eval):
                beside += event.seconds
            elif isinstance(event, CheckpointSaved):
                beside += event.seconds if event.waited is None else event.waited
            elif isinstance(event, Step):
                if since is not None:
                    seconds.append(max(0.0, time_ - since - beside))
                since, beside = time_, 0.0
        return seconds

    @property
    def evals(self) -> list[Eval]:
        return self.events(Eval)

    @property
    def saves(self) -> list[CheckpointSaved]:
        return self.events(CheckpointSaved)

    @property
    def total_steps(self) -> int | None:
        """The steps of the whole run."""
        started = self.events(RunStarted)
        return started[0].total_steps if started else None

    @property
    def start_seconds(self) -> float | None:
        """From the command to the beginning of the first step; None without a step."""
        for record in self.records:
            if isinstance(record.event, Step):
                return max(0.0, record.time - record.event.step_seconds - self.began)
        return None

    @property
    def error(self) -> Diagnostic | None:
        """What ended it, as a rank has written it."""
        errors = self.events(Error)
        return errors[-1].diagnostic if errors else None

    @property
    def end_seconds(self) -> float | None:
        """From the kill or the stop to the launcher's end."""
        return None if self.acted is None else self.ended - self.acted

    def why(self) -> str:
        """Return the cause of its end in words."""
        if self.late:
            return f"it did not come to its end in {self.ended - self.began:.0f} s"
        return self.error.render() if self.error else f"exit code {self.code}\n{self.output_end}"


@dataclass(frozen=True)
class TrainCommand:
    """Where the starts of a rehearsal write, and how long each may take.

    - ``config``, ``overrides``: of ``paceline train``; ``options``: its further words
    - ``mark``: identifies this rehearsal's processes
    - ``limit``: seconds of a start
    """

    config: str
    overrides: Sequence[str]
    options: Sequence[str]
    folder: Path
    mark: str
    limit: float

    def start(
        self,
        name: str,
        settings: Mapping[str, str],
        first_rank: int,
        enough: Callable[[Sequence[Record]], bool],
        act: Callable[[int, str], None],
    ) -> Attempt:
        """Train into the run ``name``; once its new events are ``enough``, ``act`` on the launcher's pid.

        ``first_rank``: of this node, whose events are read. Returns when the launcher has ended.
        """
        run, log = RunDir.at(self.folder / name), self.folder / f"{name}.log"
        tail = EventTail(run.events(first_rank))
        tail.poll()  # what an earlier start has written
        argv = module_argv("paceline.cli.main", "train", *self._words({**settings, OUTPUT: str(run.root)}))
        environ = {**os.environ, **import_path(os.environ), MARK: self.mark, VARIABLE: "off"}
        began, acted, late, records = time.time(), None, False, []
        written = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            child = subprocess.Popen(
                argv,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=processes.die_with_parent(),  # noqa: PLW1509 - one prctl call
            )
            try:
                while child.poll() is None:
                    records += tail.poll()
                    if acted is None and enough(records):
                        acted = time.time()
                        act(child.pid, self.mark)
                    if time.time() - began > self.limit:
                        late = True
                        break
                    time.sleep(LOOK_SECONDS)
            finally:
                _end(child)
        ended = time.time()
        records += tail.poll()
        return Attempt(
            began,
            ended,
            acted,
            child.returncode,
            tuple(records),
            tuple(self._left()),
            late,
            _end_of(log, written),
        )

    def _words(self, settings: Mapping[str, str]) -> list[str]:
        """Return the command line; a key that the rehearsal sets, or one below it, may not be set twice."""
        ours = {key.rpartition(".")[2] for key in settings}
        theirs = [o for o in self.overrides if ours.isdisjoint(o.partition("=")[0].split("."))]
        return [self.config, *theirs, *(f"{key}={value}" for key, value in settings.items()), *self.options]

    def _left(self) -> list[int]:
        """Return the processes that outlive their launcher, after a moment to end; then end them."""
        deadline = time.monotonic() + _GONE_SECONDS
        while (left := _marked(self.mark)) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        for pid in left:
            processes.send(pid, signal.SIGKILL)
        return left


def kill_last_rank(launcher: int, mark: str) -> None:
    """Send SIGKILL to the highest rank among the launcher's processes."""
    ranks = [(rank, -_ancestors(pid).index(launcher), pid) for pid, rank in _ranks(mark, launcher)]
    if ranks:  # what a rank itself has started has its variables too, and stands further below
        processes.send(max(ranks)[-1], signal.SIGKILL)


def stop(launcher: int, mark: str) -> None:
    """Send SIGTERM to the launcher, as a scheduler does before it takes the node back."""
    processes.send(launcher, signal.SIGTERM)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _marked(mark: str) -> list[int]:
    return [pid for pid, environment in processes.environments() if f"{MARK}={mark}" in environment]


def _ranks(mark: str, launcher: int) -> list[tuple[int, int]]:
    """Return (pid, rank) of the processes below the launcher that have a rank."""
    ranks = []
    for pid, environment in processes.environments():
        if f"{MARK}={mark}" in environment and launcher in _ancestors(pid):
            ranks += [(pid, int(line[5:])) for line in environment if line.startswith("RANK=")]
    return ranks


def _ancestors(pid: int) -> list[int]:
    pids = []
    while (pid := processes.parent_of(pid)) > 1 and pid not in pids:
        pids.append(pid)
    return pids


def _end_of(log: Path, written: int) -> str:
    with log.open("rb") as file:
        file.seek(written)
        text = file.read().decode("utf-8", "replace")
    return "\n".join(text.strip().splitlines()[-_TAIL_LINES:])
