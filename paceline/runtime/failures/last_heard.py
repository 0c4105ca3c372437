"""Track each rank's last heartbeat, and report the ranks, or the store, that do not respond.

Pure: the caller passes heartbeats and times.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.plan.timeouts import DEFAULT_SECONDS, START, STEP, Limit, WaitLimits
from paceline.runlog.redact import printable
from paceline.runtime import codes
from paceline.runtime.rank_env import RankEnv

SLOW_SHARE = 0.5  # fraction of time for which a process did not run: every step waits for it
_CALM_SHARE = 0.2
_LONG_SECONDS = 0.1  # a wake-up this late counts with all its time
_SHORT_SECONDS = 0.025  # normal jitter of a thread's wake-up, also on a busy machine
_SHORTEST_TICK = 0.25  # of whoever reports: a longer stop is no short one
_FEW = 5


@dataclass(frozen=True)
class HeartbeatRecord:
    """A heartbeat: the ``count``-th, at ``step`` in ``phase``.

    - ``lost``: fraction of recent time for which the process did not run
    - ``done``: it was the last one
    - ``waits``: for how many seconds the rank has waited in a collective, 0 if it is in none
    - ``place``: the line of its own code at which it is
    """

    count: int
    step: int = 0
    phase: str = ""
    lost: float = 0.0
    done: bool = False
    waits: float = 0.0
    place: str = ""

    def text(self) -> str:
        return json.dumps(asdict(self))

    def describe(self, rank: int) -> str:
        """Return ``rank 3 was last at step 12 (train), in score (my_rewards.py:12)``."""
        where = f", in {self.place}" if self.place else ""
        return f"rank {rank} was last at step {self.step} ({self.phase}){where}"

    @staticmethod
    def of(text: str | None) -> HeartbeatRecord | None:
        """Parse a heartbeat; None if it is invalid."""
        try:
            data = json.loads(text or "")
            return HeartbeatRecord(
                int(data["count"]),
                int(data["step"]),
                str(data["phase"])[:40],
                float(data["lost"]),
                bool(data["done"]),
                float(data["waits"]),
                printable(str(data["place"])[:200]),
            )
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None


class PauseDetector:
    """Measure for how much of the last ``span_seconds`` this process did not run (stopped, starved of CPU).

    A thread that wakes at fixed intervals reports how late it woke. Long stops are added up. Most stops
    shorter than the interval (a CPU quota) fall between two wake-ups; for them the share of late wake-ups
    equals the share of lost time.
    """

    def __init__(self, span_seconds: float, now: float) -> None:
        self._span, self._begun = span_seconds, now
        self._late: deque[tuple[float, float]] = deque()

    def tick(self, now: float, late_seconds: float) -> None:
        self._late.append((now, late_seconds))
        # A sliding window: what a rank lost an hour ago explains nothing now.
        while now - self._late[0][0] > self._span:
            self._late.popleft()

    def lost(self, now: float) -> float:
        """Return that fraction; 0 until it is known."""
        observed = min(self._span, now - self._begun)
        # Half a window at least: of fewer wake-ups a single late one would be a large share.
        if observed < self._span / 2:
            return 0.0
        lates = [late for _, late in self._late]
        # SIGSTOP and suspended machines: few stops, each longer than many ticks.
        stopped = sum(late for late in lates if late > _LONG_SECONDS) / observed
        return min(1.0, max(stopped, _share_of_short_stops(lates)))


def _share_of_short_stops(lates: list[float]) -> float:
    some = [late for late in lates if _SHORT_SECONDS < late <= _SHORTEST_TICK]
    if len(some) < _FEW:
        return 0.0
    # A wake-up in a stop of length L is late by anything up to L; those below the jitter are missing
    length = max(2 * sum(some) / len(some) - _SHORT_SECONDS, 2 * _SHORT_SECONDS)
    # Late wake-ups / all wake-ups, corrected for the stops too short to be told from jitter.
    return len(some) / len(lates) * length / (length - _SHORT_SECONDS)


class LastHeardMonitor:
    """Watch ``ranks`` from ``now`` on. ``sign`` returns further evidence about a silent rank."""

    def __init__(
        self,
        ranks: Iterable[int],
        now: float,
        warn_seconds: float,
        sign: Callable[[int], str] = lambda rank: "",
        limits: WaitLimits | None = None,
    ) -> None:
        self._limits = limits or WaitLimits.same(DEFAULT_SECONDS)
        self._heard = dict.fromkeys(ranks, now)
        self._beats: dict[int, HeartbeatRecord] = {}
        self._warn, self._sign = warn_seconds, sign
        self._missed: set[int] = set()  # whose silence was reported
        self._doubted: set[int] = set()  # of whom ``sign`` was asked before: it compares with that
        self._slow: set[int] = set()  # whose slowness was reported

    def hear(self, rank: int, text: str | None, now: float) -> None:
        """Record a rank's heartbeat text; a repeated or missing heartbeat does not count."""
        beat, last = HeartbeatRecord.of(text), self._beats.get(rank)
        if (
            rank in self._heard
            and beat is not None
            # By count: the store returns the same text until the rank writes again.
            and (last is None or beat.count > last.count or beat.done)
        ):
            self._beats[rank], self._heard[rank] = beat, now

    def beats(self) -> dict[int, HeartbeatRecord]:
        """Return each rank's last heartbeat, of those heard so far."""
        return dict(self._beats)

    def heard(self) -> dict[int, float]:
        """Return when each rank was last heard."""
        return dict(self._heard)

    def forgive(self, seconds: float, now: float) -> None:
        """Nobody was listening for ``seconds``: shift the times, so that it does not count as silence."""
        self._heard = {rank: min(now, heard + seconds) for rank, heard in self._heard.items()}

    def doubt(self, heard: float) -> None:
        """Set the last heartbeat of all ranks to the time ``heard``."""
        self._heard = dict.fromkeys(self._heard, heard)

    def silent(self, now: float, seconds: float) -> list[int]:
        """Return the ranks without a heartbeat for ``seconds``, except those that have sent their last."""
        return [r for r, heard in self._heard.items() if now - heard > seconds and not self.is_done(r)]

    def limit(self, rank: int) -> Limit:
        """Return how long the others wait for ``rank``, by the phase of its last heartbeat."""
        beat = self._beats.get(rank)
        return self._limits.in_phase(beat.phase if beat else START)

    def overdue(self, now: float, least_seconds: float) -> list[int]:
        """Return the ranks that have been silent for longer than their limit, or ``least_seconds``."""
        return [
            r
            for r in self.silent(now, least_seconds)
            if now - self._heard[r] > max(least_seconds, self.limit(r).seconds)
        ]

    def last_seen(self, rank: int) -> str:
        """Return ``rank 3 was last at step 12 (train)``, and further evidence about it."""
        beat = self._beats.get(rank)
        seen = beat.describe(rank) if beat else f"rank {rank} has never shown a sign of life"
        return "; ".join(filter(None, (seen, self._sign(rank))))

    def heard_since(self, rank: int, moment: float) -> bool:
        """Whether ``rank`` has given a sign of life after ``moment``."""
        return self._heard.get(rank, moment) > moment

    def news(self, now: float) -> list[Diagnostic]:
        """Return new findings to report: silence that begins or ends, a slow rank."""
        doubted = set(self.silent(now, self._warn / 2))
        for rank in doubted - self._doubted:
            self._sign(rank)
        silent = set(self.silent(now, self._warn))
        findings = [self._quiet(rank, now) for rank in sorted(silent - self._missed)]
        findings += [
            codes.RUNTIME_RANK_BACK(
                f"rank {rank} shows signs of life again",
                f"rank {rank}",
                severity=Severity.NOTE,
                evidence={"rank": rank},
            )
            for rank in sorted(self._missed - silent)
        ]
        self._doubted, self._missed = doubted, silent
        for rank, beat in list(self._beats.items()):  # another thread may add to it
            # Reported once, until the rank has been calm: a rank at the threshold would fill the log.
            if beat.lost >= SLOW_SHARE and rank not in self._slow and not beat.done:
                self._slow.add(rank)
                findings.append(
                    codes.RUNTIME_RANK_SLOW(
                        f"rank {rank} did not run for {beat.lost:.0%} of the recent time, and every step"
                        " waits for it",
                        f"rank {rank}",
                        self.last_seen(rank),
                        "find out what stops it (SIGSTOP, a debugger, a CPU limit), or what else runs on its"
                        " machine",
                        Severity.WARNING,
                        {"rank": rank},
                    )
                )
            elif beat.lost < _CALM_SHARE:
                self._slow.discard(rank)
        return findings

    def _quiet(self, rank: int, now: float) -> Diagnostic:
        limit = self.limit(rank)
        return codes.RUNTIME_RANK_QUIET(
            f"no sign of life from rank {rank} for {now - self._heard[rank]:.0f} s",
            f"rank {rank}",
            self.last_seen(rank),
            "kill -CONT continues a stopped process; otherwise the run ends when the silence has lasted"
            f" {limit.seconds:g} s ({limit.key})",
            Severity.WARNING,
            {"rank": rank},
        )

    def is_done(self, rank: int) -> bool:
        """Whether the last heartbeat of ``rank`` said that it was its last."""
        beat = self._beats.get(rank)
        return beat is not None and beat.done


def rank_silent(
    ranks: Sequence[int], seconds: float, seen: Sequence[str], stood_still: float, key: str
) -> Diagnostic:
    """``seen``: a text about each rank; ``key``: the config key that sets the limit.

    ``stood_still``: seconds for which this process itself was stopped.
    """
    shown = _ranks(ranks)
    evidence = {"silent_ranks": list(ranks), "stood_still_seconds": round(stood_still, 1)}
    return codes.RUNTIME_RANK_SILENT(
        f"rank {shown}",
        "; ".join([*seen, *_still(stood_still)]),
        shown=shown,
        seconds=seconds,
        key=key,
        evidence=evidence,
    )


def rank_late(
    ranks: Sequence[int], beat: HeartbeatRecord, limit: Limit, seen: Sequence[str], waits: str
) -> Diagnostic:
    """Return the error for ``ranks`` that are alive and in no collective, while others have waited for longer
    than ``limit``.

    ``beat``: the first one's; ``seen``: a text about each; ``waits``: who waits for them, and where.
    """
    shown, them = _ranks(ranks), "it" if len(ranks) == 1 else "them"
    # ``step`` counts finished ones: a rank in STEP works on the next.
    moment = {START: "in the start", STEP: f"in step {beat.step + 1}"}.get(
        beat.phase, f"after step {beat.step} ({beat.phase})"
    )
    what = f"rank {shown} {'is' if len(ranks) == 1 else 'are'} late {moment}: the others wait for {them}"
    evidence = {
        "rank": ranks[0],
        "late_ranks": list(ranks),
        "phase": beat.phase,
        "place": beat.place,
        "limit_seconds": limit.seconds,
        "key": limit.key,
    }
    return codes.RUNTIME_RANK_LATE(
        what,
        f"rank {shown}",
        "; ".join([*seen, waits]),
        "see that rank's log, and its stacks in events/stacks_RANK.txt; if it only needs longer, raise"
        f" {limit.key} (now {limit.seconds:g} s)",
        evidence=evidence,
    )


def store_silent(
    env: RankEnv, seconds: float, sign: Callable[[int], str], stood_still: float, severity: Severity
) -> Diagnostic:
    """The store does not respond: its host is stopped, or the network in between is cut."""
    where, host = store_place(env)
    hosted = env.rank == 0 and not env.agent_store
    # The store's host: rank 0, unless torchrun's agent has it, which is no rank.
    ranks = [] if hosted or env.agent_store else [0]
    signs = "; ".join(filter(None, (*map(sign, ranks), *_still(stood_still))))
    rank_0 = "check rank 0 (stopped by SIGSTOP or a debugger?), its machine and the network to it"
    hint = (
        "check the network of this machine"
        if hosted
        else rank_0
        if ranks
        else "check torchrun's agent, its machine and the network to it"
    )
    evidence = {"silent_ranks": ranks, "stood_still_seconds": round(stood_still, 1)}
    return codes.RUNTIME_STORE_SILENT(
        f"the ranks' store has not answered for {seconds:.0f} s;"
        f" {'this very process' if hosted else host} hosts it",
        where,
        signs,
        hint,
        severity,
        evidence,
    )


def store_place(env: RankEnv) -> tuple[str, str]:
    """Return the address of the store, and who hosts it."""
    return f"{env.meeting_host}:{env.master_port}", "the launcher's agent" if env.agent_store else "rank 0"


def _ranks(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:16])) + (" …" if len(ranks) > 16 else "")


def _still(seconds: float) -> list[str]:
    return [f"this process itself did not run for {seconds:.0f} s"] if seconds else []
