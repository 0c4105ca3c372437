"""A heartbeat file: this rank's phase and its start, for observers outside the process."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

from paceline.core.files import read_run_file
from paceline.core.json_types import JsonObject
from paceline.launch.processes import STOPPED, state_of

_STALE_SECONDS = 10.0  # five beats
_ENDED = "ZX"  # its parent has not asked for its exit code yet


class _Doing(TypedDict):
    step: int
    phase: str
    since: float


class Heartbeat:
    """Write ``path`` every ``interval_seconds`` from a daemon thread: JSON of pid, time, step and phase.

    ``since`` is the start of the phase. A rank stuck in a collective keeps writing (the thread runs) with an
    old ``since``: it is hung, not dead. If the disk is full, the run continues without the file.
    """

    def __init__(self, path: Path, interval_seconds: float = 2.0) -> None:
        self._path = path
        self._interval = interval_seconds
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._state: _Doing = {"step": 0, "phase": "start", "since": time.time()}
        self._thread = threading.Thread(target=self._run, name="paceline-heartbeat", daemon=True)

    def start(self) -> Heartbeat:
        """Start writing; return self."""
        self._thread.start()
        return self

    def beat(self, step: int, phase: str) -> None:
        """Set what this rank is doing now (cheap: no I/O in the caller)."""
        with self._lock:
            self._state = {"step": step, "phase": phase, "since": time.time()}

    def doing(self) -> tuple[int, str]:
        """Return the current step and phase."""
        with self._lock:
            return self._state["step"], self._state["phase"]

    def stop(self, phase: str = "ended") -> None:
        """Write a last heartbeat and end the thread."""
        with self._lock:
            self._state = {**self._state, "phase": phase, "since": time.time()}
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        while True:
            stopping = self._stop.is_set()  # read before writing, so that the last state is written too
            self._write()
            if stopping:
                return
            # Not ``sleep``: ``stop`` must not wait for the rest of the interval.
            self._stop.wait(self._interval)

    def _write(self) -> None:
        with self._lock:
            state = dict(self._state)
        partial = self._path.with_name(self._path.name + ".tmp")
        try:
            process = {"pid": os.getpid(), "host": socket.gethostname(), "time": time.time()}
            partial.write_text(json.dumps({**process, **state}))
            # at once: an observer never reads half a file
            os.replace(partial, self._path)
        except OSError:
            pass  # the disk is full or gone: the run itself reports that


def read_heartbeat(path: Path) -> JsonObject | None:
    """Return the last heartbeat, or None if it is missing or unreadable."""
    try:
        record = json.loads(read_run_file(path))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


class Signs:
    """Describe silent ranks by their heartbeat files, which lie at ``path_of(rank)``.

    For a reader that shares the disk with them. Of a rank on another host it reports only whether the file
    has changed since the previous call. It does not compare the clocks of two hosts.
    """

    def __init__(self, path_of: Callable[[int], Path]) -> None:
        self._path_of = path_of
        self._read: dict[int, tuple[float, float]] = {}  # what was last written, and when it was first seen

    def __call__(self, rank: int, now: float | None = None) -> str:
        """Return whether its process is stopped, gone, alive, or silent here too; empty if unknown.

        ``now``: time.monotonic().
        """
        match read_heartbeat(self._path_of(rank)):
            case {"pid": int(pid), "host": str(host), "time": int() | float() as written}:
                pass
            case _:
                return ""
        if host == socket.gethostname():
            # The letter of /proc/PID/stat: only on this host, whose numbers these are.
            state = state_of(pid)
            if not state or state in _ENDED:
                return f"its process {pid} no longer exists"
            if state in STOPPED:
                return f"its process {pid} is stopped (kill -CONT {pid} continues it)"
            return f"its process {pid} is there, in the state {state}"
        now = time.monotonic() if now is None else now
        # By change, not by age: the file's time is that of another host's clock.
        before, since = self._read.get(rank, (None, now))
        if written != before:
            self._read[rank] = written, now
            return "" if before is None else f"its heartbeat file is still written by process {pid} on {host}"
        return (
            f"its heartbeat file has not changed for {now - since:.0f} s"
            if now - since > _STALE_SECONDS
            else ""
        )
