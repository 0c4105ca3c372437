"""How much of a run's time its steps have used, over all its starts, and what the rest went to.

It is read from rank 0's events. Starts, saves, evaluations and the time between two starts train nothing.
Steps that a later start makes again were lost.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from paceline.core.files import open_run_file
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.core.rundir import RunDir

_SIGNS = ("step", "eval", "checkpoint", "finished", "error")  # of life of a start that has begun


@dataclass(frozen=True)
class StepsLost:
    """Steps that were made again: from ``step`` the run went back to ``back_to``, for ``cause``."""

    step: int
    back_to: int
    seconds: float
    cause: str

    def to_json(self) -> JsonObject:
        return {
            "step": self.step,
            "back_to": self.back_to,
            "steps": self.step - self.back_to,
            "seconds": round(self.seconds, 3),
            "cause": self.cause,
        }


@dataclass
class EffectiveTime:
    """Seconds by kind, added up from events in their order; ``starts``: how often it began."""

    starts: int = 0
    startup: float = 0.0
    data: float = 0.0
    save: float = 0.0
    evaluation: float = 0.0
    skipped: float = 0.0
    idle: float = 0.0
    losses: list[StepsLost] = field(default_factory=list)
    _begun: float | None = None
    _sign: float = 0.0
    _last: int = 0
    _cause: str = ""
    _useful: array[float] = field(default_factory=lambda: array("d", [0.0]))  # up to each step, in all

    def take(self, event: JsonObject) -> None:
        """Add an event, as it is in the file."""
        kind, now = event.get("kind"), _number(event.get("time"))
        if kind == "run_started":
            self._start(event, now)
        elif kind == "step":
            self._step(event)
        elif kind == "eval":
            self.evaluation += _number(event.get("seconds"))
        elif kind == "checkpoint":
            waited = event.get("waited")
            self.save += _number(event.get("seconds") if waited is None else waited)
        elif kind == "finished":
            self._cause = str(event.get("outcome"))
        elif kind == "error":
            self._cause = str(as_object(event.get("diagnostic")).get("code"))
        if kind in _SIGNS:
            self._sign = now

    def _start(self, event: JsonObject, now: float) -> None:
        setup, step = _number(event.get("setup_seconds")), int(_number(event.get("start_step")))
        again = self._begun is not None
        begun = max(now - setup, self._sign)  # a process may have waited for its start before the last end
        self._begun = begun if self._begun is None else self._begun
        in_place = again and event.get("setup_seconds") == 0
        if again and not in_place:
            self.idle += max(0.0, begun - self._sign)
        if again and self._last > step:
            cause = "training.spike" if in_place else self._cause or "unknown: killed, or a machine failed"
            lost = self._useful[self._last] - self._useful[step] if self._last < len(self._useful) else 0.0
            self.losses.append(StepsLost(self._last, step, lost, cause))
        self.starts += not in_place
        self.startup += now - begun
        self._sign, self._last, self._cause = now, step, ""
        self._grow(step)
        del self._useful[step + 1 :]

    def _step(self, event: JsonObject) -> None:
        step, seconds = int(_number(event.get("step"))), _number(event.get("step_seconds"))
        self.data += _number(event.get("data_seconds"))
        if event.get("skipped"):
            self.skipped += seconds
            seconds = 0.0
        if step > 0:
            self._grow(step - 1)
            del self._useful[step:]
            self._useful.append(self._useful[-1] + seconds)
            self._last = step

    def _grow(self, step: int) -> None:
        """Take steps before the first event of this folder as made elsewhere."""
        missing = step + 1 - len(self._useful)
        if missing > 0:
            self._useful.extend([self._useful[-1]] * missing)

    def to_json(self, now: float) -> JsonObject:
        """Return the shares and seconds until ``now`` (``time.time()``); empty before the first start."""
        if self._begun is None or now <= self._begun:
            return {}
        wall, useful = now - self._begun, self._useful[-1]
        kinds = {
            "useful": useful,
            "startup": self.startup,
            "data": self.data,
            "save": self.save,
            "evaluation": self.evaluation,
            "lost": sum(loss.seconds for loss in self.losses),
            "skipped": self.skipped,
            "idle": self.idle,
        }
        kinds["other"] = max(0.0, wall - sum(kinds.values()))
        rows: list[Json] = [loss.to_json() for loss in self.losses]
        return {
            "share": round(useful / wall, 4),
            "seconds": round(wall, 3),
            "starts": self.starts,
            **{f"{name}_seconds": round(seconds, 3) for name, seconds in kinds.items()},
            "lost_steps": sum(loss.step - loss.back_to for loss in self.losses),
            "losses": rows,
        }


def effective_time(run: RunDir, now: float) -> JsonObject:
    """Return ``EffectiveTime`` of a run's events; empty if there are none."""
    total = EffectiveTime()
    try:
        with open_run_file(run.events(0)) as file:
            for event in _events(file):
                total.take(event)
    except OSError:  # a run without events has no time
        return {}
    return total.to_json(now)


def _events(lines: Iterable[bytes]) -> Iterable[JsonObject]:
    for line in lines:
        try:
            yield as_object(json.loads(line))
        except ValueError:  # half a line, of a process that was killed
            continue


def _number(value: Json) -> float:
    """Return a number; 0 for what is none, or not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 0.0
    return float(value) if math.isfinite(value) else 0.0
