"""How long a run waits for its upload once it is asked to stop: who asked may kill it soon."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

#: Kubernetes and Slurm kill 30 seconds after they have asked, unless they are told otherwise.
AFTER_STOP_SECONDS = 25.0


@dataclass(frozen=True)
class Deadline:
    """``seconds`` from a stop on. ``since``: when this rank was asked to stop, by ``time.monotonic``; None as
    long as it was not.
    """

    seconds: float = AFTER_STOP_SECONDS
    since: Callable[[], float | None] = lambda: None

    def left(self) -> float:
        """Return the seconds that are left; infinity without a stop."""
        since = self.since()
        return math.inf if since is None else self.seconds - (time.monotonic() - since)
