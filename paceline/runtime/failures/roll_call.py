"""What rank 0 has heard of all ranks, as one text: a rank that waits reads it, and no key of every other.

Bounded: of ranks alike the first ones. Pure: the caller passes heartbeats and times.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.plan.timeouts import START, Limit, WaitLimits
from paceline.runtime.failures.last_heard import HeartbeatRecord

KEY = "roll_call"
QUIET_SECONDS = 1.5  # heartbeats come every second
#: Between two roll calls, for a rank that was not heard meanwhile to count as silent: over two heartbeats.
SILENT_SECONDS = 3.0
_MOST = 17  # ranks of one kind: a message shows 16

Named = tuple[int, HeartbeatRecord]


@dataclass(frozen=True)
class RollCall:
    """The ``number``-th, at rank 0's time ``at``.

    - ``busy``: ranks that wait for nobody and have not ended; some of each limit
    - ``waiting``: some that wait in a collective
    - ``quiet``: when those that were not heard lately were last heard, in rank 0's time; not the ended ones
    """

    number: int
    at: float
    busy: Sequence[Named]
    waiting: Sequence[Named]
    quiet: Mapping[int, float]

    @staticmethod
    def of(
        number: int,
        at: float,
        beats: Sequence[HeartbeatRecord | None],
        heard: Mapping[int, float],
        limits: WaitLimits,
    ) -> RollCall:
        """Make one from every rank's last heartbeat (None: not yet), and when they were heard."""
        kinds: dict[Limit | None, list[Named]] = {None: []}  # None: that wait
        for rank, last in enumerate(beats):
            beat = last or HeartbeatRecord(0, phase=START)
            alike = kinds.setdefault(None if beat.waits else limits.in_phase(beat.phase), [])
            if not beat.done and len(alike) < _MOST:
                alike.append((rank, beat))
        waiting = kinds.pop(None)
        busy = sorted(sum(kinds.values(), []), key=lambda named: named[0])
        late = [(rank, since) for rank, since in heard.items() if at - since > QUIET_SECONDS]
        still = [(rank, since) for rank, since in late if not ((seen := beats[rank]) and seen.done)]
        return RollCall(number, at, busy, waiting, dict(still[:_MOST]))

    def silent_since(self, earlier: RollCall) -> list[int]:
        """Return the ranks that rank 0 has not heard since ``earlier``."""
        return [rank for rank, since in self.quiet.items() if since <= earlier.at]

    def text(self) -> str:
        """Return it as JSON."""
        named = [[(rank, beat.text()) for rank, beat in ranks] for ranks in (self.busy, self.waiting)]
        return json.dumps([self.number, self.at, *named, list(self.quiet.items())])

    @staticmethod
    def parsed(text: str | None) -> RollCall | None:
        """Parse a text; None if it is invalid."""
        try:
            number, at, busy, waiting, quiet = json.loads(text or "")
            heard = {int(rank): float(since) for rank, since in quiet}
            return RollCall(int(number), float(at), _named(busy), _named(waiting), heard)
        except (ValueError, TypeError, OverflowError, RecursionError):
            return None


def _named(pairs: Sequence[tuple[int, str]]) -> list[Named]:
    beats = [(int(rank), HeartbeatRecord.of(text)) for rank, text in pairs]
    return [(rank, beat) for rank, beat in beats if beat is not None]
