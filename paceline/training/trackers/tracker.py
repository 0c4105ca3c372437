"""What a tracker is, and what it is told of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from paceline.core.json_types import Json
from paceline.core.rundir import RunDir


class Tracker(Protocol):
    """Receives numbers by name."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is made with; texts are redacted."""

    run: RunDir
    name: str
    config: Mapping[str, Json]
    project: str = ""
    start_step: int = 0
    online: bool = True  # False: it has no key of its server here, and records for later
    address: str = ""  # of MLflow's server, or its database
