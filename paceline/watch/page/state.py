"""The state of a run, from what its folder holds."""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from paceline.core.errors import ExitCode
from paceline.core.json_types import Json, JsonObject
from paceline.launch.processes import STOPPED, state_of
from paceline.watch.page.folder import LastBeat, LastStart

FRESH_SECONDS = 15.0  # heartbeats come every 2 s; a file server may hold them back for some
_MISSED_SECONDS = 5.0  # where no process has the heartbeat's pid; it may be another container's
QUIET_SECONDS = 120.0
_QUIET_STEPS = 20.0

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
_ASK = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
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
    requested = (ExitCode.STOPPED, ExitCode.INTERRUPTED, *(128 + int(number) for number in _ASK))
    return "stopped" if start.exit_code in requested and not start.cause else "failed"


def _end(record: Mapping[str, Json]) -> StateName | None:
    return next((name for name in _ENDED if name == record.get("outcome")), None)


def _alive(beat: LastBeat, last_step: int, step_seconds: float, now: float) -> RunState:
    lasted = max(0.0, now - beat.since)
    if last_step and lasted > max(QUIET_SECONDS, _QUIET_STEPS * step_seconds):
        return RunState("quiet", lasted, beat.phase)
    return RunState("running" if last_step or beat.step else "starting", lasted, beat.phase)
