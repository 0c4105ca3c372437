"""Restarts by a run's own launcher (``launch.max_restarts``): which ends can heal, when it gives up."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from paceline.core.diagnostics import Diagnostic
from paceline.core.files import open_run_file, read_run_file
from paceline.core.json_types import as_object
from paceline.core.rundir import RunDir
from paceline.launch import codes
from paceline.launch.supervision.exit_codes import After, after
from paceline.launch.supervision.exit_record import REQUEST, begun_start

FIRST_SECONDS, MOST_SECONDS = 2.0, 60.0  # of the pause before a second restart, which doubles
_LOOK_SECONDS = 0.1
_TAIL_BYTES = 1 << 20  # the last step is among the last events of a rank


@dataclass(frozen=True)
class RunEnd:
    """How a start ended.

    - ``error``: the code of what ended it, empty if unknown
    - ``step``: the last recorded one
    - ``saved``: name of the newest checkpoint, empty without one
    - ``stopped``: a signal or a request had asked for it; ``signalled``: a signal
    """

    code: int
    error: str
    step: int
    saved: str
    stopped: bool = False
    signalled: bool = False

    @classmethod
    def of(cls, run: RunDir, code: int, node_rank: int, rank: int) -> RunEnd:
        """Read it from the run's records; ``rank``: the first of the node."""
        record = begun_start(run, node_rank)
        cause = as_object(record.get("cause"))
        saved = ""
        with suppress(OSError, UnicodeDecodeError):
            saved = read_run_file(run.latest).strip()
        stop = record.get("stop")
        error, step = str(cause.get("code") or ""), last_step(run, rank)
        return cls(code, error, step, saved, bool(stop), bool(stop) and stop != REQUEST)


def last_step(run: RunDir, rank: int) -> int:
    """Return the last step that a rank has recorded since its start; 0 without one."""
    with suppress(OSError), open_run_file(run.events(rank)) as file:
        file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
        for line in reversed(file.read(_TAIL_BYTES).splitlines()):
            with suppress(ValueError):
                event = as_object(json.loads(line))
                if event.get("kind") == "run_started":
                    return 0
                if event.get("kind") == "step":
                    step = event.get("step")
                    return step if isinstance(step, int) else 0
    return 0


class Restarts:
    """Decides after each end of a run; ``limit``: restarts without a newer checkpoint."""

    def __init__(self, limit: int) -> None:
        self._limit, self._count = limit, 0
        self._former: RunEnd | None = None

    def after(self, end: RunEnd) -> Diagnostic | None:
        """Return the note of a restart, a finding of why there is none, or None where no restart is due."""
        former, self._former = self._former, end
        if not self._limit or end.stopped or after(end.code) is not After.COUNT:
            return None
        known = f"{end.error or f'exit code {end.code}'} at step {end.step}"
        # The same error at the same step twice: a third try would end there too.
        if former is not None and end.error and (end.error, end.step) == (former.error, former.step):
            return codes.LAUNCH_SAME_ERROR(found=known, step=end.step)
        # A newer checkpoint is progress: the count begins anew.
        if former is not None and end.saved != former.saved:
            self._count = 0
        if self._count >= self._limit:
            return codes.LAUNCH_RESTARTS_USED("launch.max_restarts", known, count=self._count)
        self._count += 1
        return codes.LAUNCH_RESTART(found=known, number=self._count, limit=self._limit, start=_start(end))

    @property
    def pause(self) -> float:
        """Seconds to wait before the next start: none before the first."""
        return min(MOST_SECONDS, FIRST_SECONDS * 2 ** (self._count - 2)) if self._count > 1 else 0.0


def wait(seconds: float, requests_stop: Callable[[], bool]) -> bool:
    """Wait so long; return False as soon as a stop is requested."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if requests_stop():
            return False
        time.sleep(_LOOK_SECONDS)
    return not requests_stop()


def _start(end: RunEnd) -> str:
    return f"the checkpoint {end.saved}" if end.saved else "the beginning: no checkpoint was saved"
