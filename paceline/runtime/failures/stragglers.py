"""Who is late: the rank that the others wait for in a collective, while all of them give signs of life.

torch's flight recorder tells each rank which collective it waits in and for how long; its heartbeats tell
the others. Once a rank has waited for longer than a limit, the ranks that wait in none are late, each by the
limit of its own phase: one that still saves is not late for the others' next step.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.diagnostics import Diagnostic
from paceline.plan.timeouts import START, WaitLimits
from paceline.runtime.failures.flight_recorder import Collective, active
from paceline.runtime.failures.hang_report import collective_stuck, rank_late
from paceline.runtime.failures.last_heard import Beat

FLIGHT_SECONDS = 5.0  # between looks at the collectives under way; less where a limit is short
_LEAST_SECONDS = 0.5
_LOOKS = 4  # within the shortest limit
_SHOWN = 4


class Lateness:
    """Looks, from ``now`` on, at what this ``rank`` waits in."""

    def __init__(self, rank: int, limits: WaitLimits, now: float) -> None:
        self._rank, self._limits = rank, limits
        self._every = min(FLIGHT_SECONDS, max(_LEAST_SECONDS, limits.shortest / _LOOKS))
        self._next = now + self._every
        self.waits = 0.0  # seconds in the longest collective under way at the last look

    def look(self, now: float) -> Collective | None:
        """Look if it is time to; return a wait that has lasted longer than the shortest limit."""
        if now < self._next:
            return None
        self._next = now + self._every
        found = active()
        self.waits = found[0].seconds if found else 0.0
        return found[0] if self.waits > self._limits.shortest else None

    def judge(self, wait: Collective, phase: str, texts: Sequence[str | None]) -> Diagnostic | None:
        """Return who is late, given this rank's ``phase`` and every rank's last heartbeat; None if nobody."""
        beats = [Beat.of(text) or Beat(0, phase=START) for text in texts]
        others = [rank for rank in range(len(beats)) if rank != self._rank]
        missing = [rank for rank in others if not beats[rank].waits and not beats[rank].done]
        late = [rank for rank in missing if wait.seconds > self._limit(beats[rank].phase)]
        waiting = f"rank {self._rank} waits in {wait.describe()}"
        if late:
            first = beats[late[0]]
            seen = [
                f"rank {rank} was last at step {beats[rank].step} ({beats[rank].phase})"
                for rank in late[:_SHOWN]
            ]
            return rank_late(late, first, self._limits.in_phase(first.phase), seen, waiting)
        if not missing and wait.seconds > self._limit(phase):
            return collective_stuck(self._rank, wait.describe(), self._limits.in_phase(phase).key)
        return None

    def _limit(self, phase: str) -> float:
        return self._limits.in_phase(phase).seconds
