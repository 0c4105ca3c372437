"""Find a late rank: the others wait for it in a collective, while all ranks are alive.

torch's flight recorder tells each rank which collective it waits in and for how long; its heartbeats tell the
others. Once a rank has waited for longer than a limit, ranks not waiting in a collective are late once their
phase's limit has passed. A rank that still saves is not late for the others' next step.

Collectives are recorded if ``TORCH_FR_BUFFER_SIZE`` was set before torch was imported
(``launch.environment.device_variables``). They are read as JSON in this process; what torch itself writes at
a time-out is a pickle, which nobody here opens.

What rank 0 has heard of all ranks, as one text: a rank that waits reads it, and no key of every other.

Bounded: of similar ranks only the first are listed. Pure: the caller passes heartbeats and times.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.plan.timeouts import START, Limit, WaitLimits
from paceline.runtime import codes
from paceline.runtime.failures.last_heard import HeartbeatRecord, rank_late
from paceline.runtime.failures.main_thread import DistributedCall

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
        # By limit, so that the cap keeps some ranks of every phase: the late one may be alone in its own.
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


FLIGHT_SECONDS = 5.0  # between looks at the collectives under way; less where a limit is short
_LEAST_SECONDS = 0.5
_LOOKS = 4  # within the shortest limit
_SHOWN = 4
#: Findings of ranks that wait for each other.
WAITS = (
    codes.RUNTIME_RANK_LATE.name,
    codes.RUNTIME_RANK_SILENT.name,
    codes.RUNTIME_COLLECTIVE_STUCK.name,
)
STOP_SECONDS = 60.0  # in which ranks that all wait get on, once the run is to stop


class StragglerMonitor:
    """Watches, from ``now`` on, the collective in which this ``rank`` waits."""

    def __init__(self, rank: int, limits: WaitLimits, now: float) -> None:
        self._rank, self._limits = rank, limits
        # Each look dumps the whole flight recorder, so looks are rare where limits are long.
        self._every = min(FLIGHT_SECONDS, max(_LEAST_SECONDS, limits.shortest / _LOOKS))
        self._next = now + self._every
        self._call = DistributedCall()
        self.waits = 0.0  # seconds in the longest collective under way at the last look

    def look(self, now: float, *, stops: bool = False) -> Collective | None:
        """Look at intervals; return a wait that has lasted longer than the shortest limit.

        ``stops``: the run is to stop, or its launcher is gone.
        """
        if now < self._next:
            return None
        self._next = now + self._every
        waiting = active() or self._standing(now)
        self.waits = waiting[0].seconds if waiting else 0.0
        # After a stop request nobody wants to wait half an hour for ranks that will never meet.
        shortest = min(self._limits.shortest, STOP_SECONDS) if stops else self._limits.shortest
        return waiting[0] if self.waits > shortest else None

    def _standing(self, now: float) -> list[Collective]:
        """Return the call in which this rank stands, where the flight recorder knows of none."""
        name, seconds = self._call.seconds(now)
        return [Collective(name, 0, "", "", seconds)] if name else []

    def judge(
        self, wait: Collective, phase: str, roll: RollCall, *, stops: bool = False
    ) -> Diagnostic | None:
        """Return the late ranks, given this rank's ``phase`` and what is known of all; None if there are
        none. ``stops``: as in ``look``."""
        busy = [(rank, beat) for rank, beat in roll.busy if rank != self._rank]
        # A silent rank may be stopped: it is judged by its silence (``last_heard``), which says so
        silent = {rank for rank, since in roll.quiet.items() if roll.at - since > SILENT_SECONDS}
        overdue = [(rank, beat) for rank, beat in busy if wait.seconds > self._limit(beat.phase)]
        late = [(rank, beat) for rank, beat in overdue if rank not in silent]
        waits = wait.describe()
        if late:
            first = late[0][1]
            seen = [beat.describe(rank) for rank, beat in late[:_SHOWN]]
            limit = self._limits.in_phase(first.phase)
            ranks = [rank for rank, _ in late]
            return rank_late(ranks, first, limit, seen, f"rank {self._rank} waits in {waits}")
        # All wait, nobody is late: ranks are in different collectives, or the network lost one.
        if not busy and wait.seconds > min(self._limit(phase), STOP_SECONDS if stops else math.inf):
            others = [beat.describe(rank) for rank, beat in roll.waiting if rank != self._rank]
            return codes.RUNTIME_COLLECTIVE_STUCK(
                f"rank {self._rank}",
                "; ".join([waits, *others[:_SHOWN]]),
                rank=self._rank,
                waits=waits,
                key=self._limits.in_phase(phase).key,
                evidence={"rank": self._rank},
            )
        return None

    def _limit(self, phase: str) -> float:
        return self._limits.in_phase(phase).seconds


_SHAPES = 3  # of a collective's inputs, in words


@dataclass(frozen=True)
class Collective:
    """A collective that this rank has begun and not ended; ``seconds``: how long ago."""

    name: str
    number: int
    group: str
    sizes: str
    seconds: float

    def describe(self) -> str:
        of = f" {self.number}" + (f" of {self.sizes}" if self.sizes else "") if self.number else ""
        group = f" in group {self.group}" if self.group else ""
        return f"{self.name}{of}{group} for {self.seconds:.0f} s"


def active(text: str | None = None, now_ns: int | None = None) -> list[Collective]:
    """Return the collectives under way, the longest first. ``text``: a dump, None for this process's own."""
    try:
        data = json.loads(dump_entries() if text is None else text)
        entries = [entry for entry in data.get("entries", ()) if not _ended(entry)]
    except (ValueError, AttributeError, TypeError):
        return []
    now = time.time_ns() if now_ns is None else now_ns
    collectives = []
    for entry in entries:
        group = entry.get("process_group") or ["", ""]
        shapes = [list(size) for size in entry.get("input_sizes") or ()]
        collectives.append(
            Collective(
                str(entry.get("profiling_name", "?")),
                int(entry.get("collective_seq_id") or entry.get("p2p_seq_id") or 0),
                str(group[-1] or group[0]),
                ", ".join(map(str, shapes[:_SHAPES])),
                max(0.0, (now - int(entry.get("time_created_ns", now))) / 1e9),
            )
        )
    return sorted(collectives, key=lambda collective: -collective.seconds)


def write_flight(path: Path) -> None:
    """Write the recorded collectives as JSON; do nothing if none are recorded or the file cannot be
    written."""
    text = dump_entries()
    if not json.loads(text or "{}").get("entries"):
        return
    with contextlib.suppress(OSError):
        path.write_text(text, encoding="utf-8")


def _ended(entry: dict[str, object]) -> bool:
    return bool(entry.get("retired")) or entry.get("state") == "completed"


def dump_entries() -> str:
    from torch._C import _distributed_c10d

    # A private name of torch; without it lateness is seen in sends and receives only.
    dump = getattr(_distributed_c10d, "_dump_fr_trace_json", None)
    try:
        return "" if dump is None else bytes(dump()).decode("utf-8", "replace")
    except RuntimeError:
        return ""
