"""What a run folder says without its events: JSON files, heartbeats, and which folders are runs."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from paceline.core.files import read_run_file
from paceline.core.json_types import JsonObject, as_object
from paceline.core.rundir import RunDir
from paceline.launch.processes import started_at

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
    ended yet), the error that ended it, and whether its launcher lives (None: only another machine knows).
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
