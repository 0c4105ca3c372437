"""A sign of life on disk: what this rank is doing and since when, for observers that cannot ask it."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from paceline.launch.processes import STOPPED, state_of

_STALE_SECONDS = 10.0  # five beats


class Heartbeat:
    """Writes ``path`` every ``interval_seconds`` from a daemon thread: JSON with pid, time, step, phase and the phase's start.

    A rank stuck in a collective keeps beating (the thread is alive) with an old ``since``: hung, not dead. A full disk
    never ends a run because of this file.
    """

    def __init__(self, path: Path, interval_seconds: float = 2.0) -> None:
        self._path = path
        self._interval = interval_seconds
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._state: dict[str, Any] = {"step": 0, "phase": "start", "since": time.time()}
        self._thread = threading.Thread(target=self._run, name="paceline-heartbeat", daemon=True)

    def start(self) -> Heartbeat:
        """Begin to beat; returns itself."""
        self._thread.start()
        return self

    def beat(self, step: int, phase: str) -> None:
        """Say what this rank does now (cheap: no I/O in the caller)."""
        with self._lock:
            self._state = {"step": step, "phase": phase, "since": time.time()}

    def doing(self) -> tuple[int, str]:
        """The step and phase that it tells."""
        with self._lock:
            return int(self._state["step"]), str(self._state["phase"])

    def stop(self, phase: str = "ended") -> None:
        """Write a last beat and end the thread."""
        with self._lock:
            self._state = {**self._state, "phase": phase, "since": time.time()}
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        while True:
            stopping = self._stop.is_set()  # read before writing, so that the last state is written once more
            self._write()
            if stopping:
                return
            self._stop.wait(self._interval)

    def _write(self) -> None:
        with self._lock:
            state = dict(self._state)
        partial = self._path.with_name(self._path.name + ".tmp")
        try:
            known = {"pid": os.getpid(), "host": socket.gethostname(), "time": time.time()}
            partial.write_text(json.dumps({**known, **state}))
            os.replace(partial, self._path)
        except OSError:
            pass  # the disk is full or gone: the run itself will say so


def read_heartbeat(path: Path) -> dict[str, Any] | None:
    """The last beat, or None when there is none (or it is unreadable)."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def sign_of(path: Path, now: float | None = None) -> str:
    """What a silent rank's heartbeat tells a reader of the same disk, in words: stopped, gone, silent here too, or alive. Empty where it tells nothing."""
    found = read_heartbeat(path)
    try:
        pid, host, age = int(found["pid"]), found["host"], (now or time.time()) - float(found["time"])  # type: ignore[index]
    except (TypeError, KeyError, ValueError):
        return ""
    if host == socket.gethostname():
        state = state_of(pid)
        if not state:
            return f"its process {pid} is gone"
        if state in STOPPED:
            return f"its process {pid} is stopped (kill -CONT {pid} lets it go on)"
    if age > _STALE_SECONDS:
        return f"its heartbeat file is {age:.0f} s old too"
    return "its process lives (its heartbeat file is fresh): the network between is cut"
