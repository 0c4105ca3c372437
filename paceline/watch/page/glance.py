"""Summarize a run for one row of the list, from its folder without an index; find the folders that are
runs."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Literal

from paceline.core.errors import ExitCode
from paceline.core.files import open_run_file, read_run_file
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.core.rundir import RunDir
from paceline.launch.processes import STOPPED, started_at, state_of

MAX_RUNS = 500  # each costs a row with a few small files
_DEPTH = 3  # outputs/PROJECT/SWEEP/RUN
_SKIPPED = (
    "events",
    "logs",
    "checkpoints",
    "tensorboard",
    "wandb",
    "mlflow",
    "swanlab",
    "profile",
    "node_modules",
)


def find_runs(root: Path) -> dict[str, RunDir]:
    """Return the runs at ``root`` or up to three folders below, by an id that stays the same."""
    if RunDir.at(root).exists():
        return {run_id(RunDir.at(root)): RunDir.at(root)}
    runs: dict[str, RunDir] = {}
    for path in _folders(root.expanduser().absolute(), _DEPTH):
        if len(runs) >= MAX_RUNS:
            break
        run = RunDir.at(path)
        if run.exists():
            runs[run_id(run)] = run
    return runs


def run_id(run: RunDir) -> str:
    """Return a short name for URLs."""
    return sha256(os.fsencode(run.root)).hexdigest()[:12]


def _folders(root: Path, depth: int) -> Iterator[Path]:
    try:
        entries = sorted(os.scandir(root), key=lambda entry: entry.name)
    except OSError:  # deleted meanwhile, or not ours to read
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.name in _SKIPPED or not entry.is_dir(follow_symlinks=False):
            continue
        yield Path(entry.path)
        if depth > 1 and not RunDir.at(entry.path).exists():
            yield from _folders(Path(entry.path), depth - 1)


def read_json(path: Path) -> JsonObject:
    """Return a file's JSON object; empty if it is missing, half written, too large or no object."""
    try:
        data = json.loads(read_run_file(path), parse_constant=str)
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def changed_at(path: Path) -> float:
    """Return a file's time of change (unix seconds); 0 if there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


@dataclass(frozen=True)
class LastStart:
    """The launcher's record of the last start: when it was written (unix seconds), the exit code (None: not
    ended yet) and the error that ended it. It also says whether the launcher lives (None: only another
    machine knows).
    """

    time: float
    exit_code: int | None
    cause: JsonObject
    lives: bool | None


def read_start(run: RunDir) -> LastStart | None:
    """Return the record of the last start from the first node; None without one."""
    data = read_json(run.exits())
    code = data.get("exit_code")
    if code is not None and not isinstance(code, int):
        return None
    pid, began, here = data.get("pid"), data.get("began"), data.get("host") == socket.gethostname()
    if code is None and not isinstance(pid, int):
        return None
    lives = started_at(pid) == began != -1 if isinstance(pid, int) and here else None
    return LastStart(changed_at(run.exits()), code, as_object(data.get("cause")), lives)


@dataclass(frozen=True)
class LastBeat:
    """A rank's last heartbeat: unix seconds ``time`` and ``since``, the step and phase it is in."""

    rank: int
    time: float
    step: int
    phase: str
    since: float
    pid: int
    host: str


def read_beat(run: RunDir, rank: int) -> LastBeat | None:
    """Return a rank's heartbeat; None without one."""
    match read_json(run.heartbeat(rank)):
        case {
            "time": int() | float() as at,
            "step": int(step),
            "phase": str(phase),
            "since": int() | float() as since,
            "pid": int(pid),
            "host": str(host),
        }:
            return LastBeat(rank, float(at), step, phase, float(since), pid, host)
        case _:
            return None


_TAIL_BYTES = 64 << 10  # holds the last step of most runs
_MOST_BYTES = 32 << 20  # samples after the last step may be long


def read_state(run: RunDir) -> tuple[str, float]:
    """Return the name of the run's state, and since how many seconds it is quiet or gone."""
    state = as_object(glance(run).get("state"))
    return str(state.get("name")), _float(state.get("seconds"))


def read_world_size(run: RunDir) -> int | None:
    """Return the number of ranks of the run's plan; None without a plan."""
    return _whole(read_json(run.plan_json).get("world_size"))


def glance(run: RunDir) -> JsonObject:
    """Return the run's name, state, step, loss and description; state ``gone`` once it is deleted."""
    row: JsonObject = {"id": run_id(run), "name": run.root.name, "path": str(run.root)}
    if not run.root.is_dir():
        return {**row, "state": {"name": "gone", "seconds": 0.0, "phase": "", "process": ""}, "live": False}
    events = _last_events(run)
    step, begun = events.get("step", {}), events.get("run_started", {})
    beat, result = read_beat(run, 0), read_json(run.result_json)
    last = _whole(step.get("step")) or _whole(result.get("step")) or 0
    state = state_of_run(
        beat,
        result,
        changed_at(run.result_json),
        events.get("finished", {}),
        has_errors="error" in events,
        last_step=last,
        step_seconds=_float(step.get("step_seconds")),
        now=time.time(),
        start=read_start(run),
    )
    return {
        **row,
        "state": state.to_json(),
        "live": state.name in LIVE,
        "step": last or (beat.step if beat else 0),
        "total_steps": _whole(begun.get("total_steps")),
        "loss": step.get("loss"),
        "tokens_per_second": step.get("tokens_per_second"),
        "changed": max(changed_at(run.events(0)), changed_at(run.plan_json)),
        **described(read_json(run.plan_json)),
    }


def described(plan: Mapping[str, Json]) -> JsonObject:
    """Return the plan's summary for a row: algorithm, strategy, ranks, parameters, precision and model."""
    shape, config = as_object(plan.get("shape")), as_object(plan.get("config"))
    name = as_object(config.get("model")).get("name_or_path")
    return {
        "algorithm": str(plan.get("algorithm", "")),
        "strategy": str(plan.get("strategy", "")),
        "world_size": _whole(plan.get("world_size")),
        "device": str(plan.get("device", "")),
        "parameters": _whole(shape.get("num_parameters")),
        "model": str(name or shape.get("model_type") or ""),
        "precision": str(as_object(plan.get("precision")).get("compute") or ""),
    }


def _last_events(run: RunDir) -> dict[str, dict[str, Any]]:
    """Return the last event of each kind near the end of rank 0's file, none older than the last attempt."""
    try:
        with open_run_file(run.events(0)) as file:
            size = file.seek(0, 2)
            file.seek(0)
            begun = [line for line in file.read(_TAIL_BYTES).split(b"\n")[:-1] if b'"run_started"' in line]
            length = _TAIL_BYTES
            last = _end_of(file, size, length)
            # Answers after the last step may be long
            while b'"kind":"step"' not in last and length < min(size, _MOST_BYTES):
                length *= 8
                last = _end_of(file, size, length)
    except OSError:
        return {}
    events: dict[str, dict[str, Any]] = {}
    for line in [*begun[-1:], *last.split(b"\n")[:-1]]:
        try:
            data = json.loads(line, parse_constant=str)
        except (ValueError, RecursionError):
            continue  # cut at the front, or half a line
        if not isinstance(data, dict):
            continue
        if data.get("kind") == "run_started":
            events = {}
        events[str(data.get("kind"))] = data
    return events


def _end_of(file: BinaryIO, size: int, length: int) -> bytes:
    file.seek(max(0, size - length))
    return file.read(length)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _float(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


FRESH_SECONDS = 15.0  # heartbeats come every 2 s; a file server may hold them back for some
_MISSED_SECONDS = 5.0  # where no process has the heartbeat's pid; it may be another container's
QUIET_SECONDS = 120.0  # shorter phases are no reason to look
_QUIET_STEPS = 20.0  # of a typical step's time, where that is longer

#: Every state of a run.
StateName = Literal[
    "planned",  # there is a plan and no sign of a process yet
    "starting",  # a process is alive and no step is finished
    "running",  # a process is alive and steps are finished
    "quiet",  # a process is alive, and its present phase lasts much longer than a step
    "paused",  # its process is stopped by a signal
    "completed",  # it ended as planned
    "early_stopped",  # it ended because evaluations no longer improved
    "stopped",  # it was stopped on request
    "failed",  # it ended with an error
    "vanished",  # no process gives a sign of life, and no end was written
    "gone",  # the folder no longer exists
]
_STOP_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGTERM,
)  # a run that one of these ends was asked to stop
_ENDED: tuple[StateName, ...] = ("completed", "early_stopped", "stopped", "failed")
LIVE: tuple[StateName, ...] = ("planned", "starting", "running", "quiet", "paused")


@dataclass(frozen=True)
class RunState:
    """``name``: its name; ``seconds``: since when (quiet, vanished); ``phase``: what it does now.

    ``process``: ``missing`` where the pid of the heartbeat no longer exists on this machine, else empty.
    """

    name: StateName
    seconds: float = 0.0
    phase: str = ""
    process: str = ""

    def to_json(self) -> JsonObject:
        """Plain JSON types."""
        return asdict(self)


def state_of_run(
    beat: LastBeat | None,
    result: Mapping[str, Json],
    result_time: float,
    finished: Mapping[str, Json],
    *,
    has_errors: bool,
    last_step: int,
    step_seconds: float,
    now: float,
    host: str = "",
    start: LastStart | None = None,
) -> RunState:
    """Return the state at ``now`` (unix seconds).

    ``beat``: rank 0's heartbeat; ``result``: result.json and the time of its change; ``finished``: the last
    attempt's last event; ``step_seconds``: a typical step's. ``host``: this machine's name. ``start``: the
    launcher's record, which knows of ends that no rank could write.
    """
    resumed = beat is not None and beat.phase != "ended" and beat.time > result_time + FRESH_SECONDS
    begun = start is not None and start.exit_code is None and start.lives and start.time > result_time
    if not (resumed or begun) and (outcome := _end(result)):
        return RunState(outcome)
    # The launcher has the last word on a start whose ranks wrote no end
    if start is not None and start.exit_code is not None and (beat is None or start.time + 1 > beat.time):
        return RunState(_end(finished) or _of_start(start))
    dead = start is not None and start.exit_code is None and start.lives is False
    # A process that lives, or does not
    if beat is not None and beat.phase != "ended":
        age = max(0.0, now - beat.time)
        here = beat.host == (host or socket.gethostname())
        process = state_of(beat.pid) if here else None
        if process is not None and process in STOPPED:
            return RunState("paused", age, beat.phase)
        if age < (FRESH_SECONDS if process != "" else _MISSED_SECONDS):
            return _alive(beat, last_step, step_seconds, now)
        if not finished and not has_errors:
            return RunState("vanished", age, beat.phase, "missing" if process == "" else "")
    if outcome := _end(finished):
        return RunState(outcome)
    if has_errors:
        return RunState("failed")
    if beat is None and start is not None and not dead:
        return RunState("starting", max(0.0, now - start.time))
    if beat is None:
        return RunState("vanished" if last_step or dead else "planned")
    return RunState("vanished", max(0.0, now - beat.time), beat.phase)


def _of_start(start: LastStart) -> StateName:
    """Return the state of a run of whose end only the launcher knows."""
    if start.exit_code in (ExitCode.OK, ExitCode.CLOSING):
        return "completed"
    requested = (ExitCode.STOPPED, ExitCode.INTERRUPTED, *(128 + int(number) for number in _STOP_SIGNALS))
    return "stopped" if start.exit_code in requested and not start.cause else "failed"


def _end(record: Mapping[str, Json]) -> StateName | None:
    return next((name for name in _ENDED if name == record.get("outcome")), None)


def _alive(beat: LastBeat, last_step: int, step_seconds: float, now: float) -> RunState:
    lasted = max(0.0, now - beat.since)
    if last_step and lasted > max(QUIET_SECONDS, _QUIET_STEPS * step_seconds):
        return RunState("quiet", lasted, beat.phase)
    return RunState("running" if last_step or beat.step else "starting", lasted, beat.phase)
