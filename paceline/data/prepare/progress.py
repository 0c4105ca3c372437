"""Progress reports of the preparation."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class PrepareProgress:
    """The state of the preparation.

    ``stage``: fingerprint, waiting (another process prepares the same data), tokenise, write, done.
    ``fraction``: 0 to 1, None if unknown.
    """

    stage: str
    rows: int = 0
    fraction: float | None = None
    rows_per_second: float = 0.0
    eta_seconds: float | None = None
    tokens: int = 0


Report = Callable[[PrepareProgress], None]


class Meter:
    """Turn finished rows and bytes into rates and an ETA. Reports at most ten times per second."""

    def __init__(self, total_bytes: int, report: Report) -> None:
        self._total = total_bytes
        self._report = report
        self._started = self._reported = time.monotonic()

    def update(self, rows: int, consumed: int, tokens: int) -> None:
        """Report the state after ``rows`` rows."""
        now = time.monotonic()
        if now - self._reported < 0.1:
            return
        self._reported = now
        elapsed = now - self._started
        fraction = min(consumed / self._total, 1.0) if self._total else None
        eta = elapsed * (1 - fraction) / fraction if fraction else None
        self._report(PrepareProgress("tokenise", rows, fraction, rows / elapsed, eta, tokens))
