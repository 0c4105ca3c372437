"""Pass errors and silence between ranks without a collective (contract 7): a rank may hang in an all-reduce.

    failing rank   publishes its diagnostic in the store → waits until the others have read it → exits
    other ranks    see it within a second → callback (writes it to this rank's log) → acknowledge → exit
    dead rank      its line to rank 0 is cut: rank 0 names it after ``GONE_SECONDS`` without a message; a line
                   that only times out is no death
    silent rank    (stopped, frozen, disconnected): a warning after ``QUIET_SECONDS``; after its phase's limit
                   every rank that still runs ends the run
    late rank      (alive, but the others wait for it in a collective): the same, by ``stragglers``

Each rank has two daemon threads. One talks to the store and may block in it forever (``time_limit.py``). The
other never blocks: it watches the time and decides. The other ranks exit a moment after the failing one, so
that whoever started the processes sees the root cause fail first.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ExitCode
from paceline.plan.timeouts import Limit, WaitLimits
from paceline.runtime import codes
from paceline.runtime.failures.last_heard import (
    HeartbeatRecord,
    LastHeardMonitor,
    PauseDetector,
    rank_silent,
    store_place,
    store_silent,
)
from paceline.runtime.failures.liveness_socket import LivenessSocket, own_address
from paceline.runtime.failures.main_thread import place
from paceline.runtime.failures.stragglers import KEY, SILENT_SECONDS, RollCall, StragglerMonitor
from paceline.runtime.process_group.refusal import failure_message, parsed_failure
from paceline.runtime.process_group.rendezvous import alive_key, connect_store
from paceline.runtime.process_group.signed_store import SignedStore
from paceline.runtime.process_group.world import World
from paceline.runtime.time_limit import call_with_timeout, exit_now

POLL_SECONDS = 0.3
BEAT_SECONDS = 1.0
TICK_SECONDS = 0.25
QUIET_SECONDS = 30.0  # without a heartbeat, until a warning names the rank
LEAST_LIMIT_SECONDS = 10.0  # minimum silence that ends a run, however short its timeout: a store may be slow
_STILL_SECONDS = 2.0  # a clock this late means that this process itself was stopped
_DEAF_SECONDS = 3.0  # without a response of the store
_DOUBT_SECONDS = 5.0  # for the others' heartbeats after this process was stopped for long
_READ_SECONDS = 3.0  # the failing rank waits this long for acknowledgements
_QUERY_SECONDS = 2.0
_OLD_SECONDS = 6.0  # without a heartbeat of rank 0, until what it last wrote of others counts no more
_FOLLOW_SECONDS = 1.0  # the other ranks let the failing rank exit first
_CALLBACK_SECONDS = 5.0
_BEATS_PER_SECOND = 1024  # maximum that rank 0 reads
GONE_SECONDS = 8.0  # for the words of a rank whose line was cut; longer than an error takes to be published
_LINE_SECONDS = 20.0
_LINES = "lines"

OnForeign = Callable[[int, Diagnostic, int], None]


class Alarm:
    """Publish this rank's error to the others, and end this process when another rank fails or is silent.

    Does nothing in a world of one. ``on_foreign(rank, diagnostic, exit_code)`` is called from a daemon thread
    with the failing rank's diagnostic (or that of its silence) before the process exits with that code
    (``PEER_FAILED``, ``PEER_SILENT``); it should write and flush, nothing else. ``on_warning(diagnostic,
    loud)`` is called for silence and slowness while the run continues; ``loud`` on the rank that should print
    it. ``doing`` returns this rank's step and phase; ``sign`` what else is known about a silent rank;
    ``stopping`` whether the run is to stop.
    """

    def __init__(
        self,
        world: World,
        on_foreign: OnForeign = lambda rank, diagnostic, code: None,
        *,
        on_warning: Callable[[Diagnostic, bool], None] = lambda diagnostic, loud: None,
        doing: Callable[[], tuple[int, str]] = lambda: (0, "start"),
        sign: Callable[[int], str] = lambda rank: "",
        stopping: Callable[[], bool] = lambda: False,
        quiet_seconds: float = QUIET_SECONDS,
        limits: WaitLimits | None = None,
    ) -> None:
        self._world = world
        self._on_foreign, self._on_warning = on_foreign, on_warning
        self._doing, self._sign, self._stopping = doing, sign, stopping
        self._limits = limits or WaitLimits.same(world.timeout_seconds)
        # At most half of the shortest limit, so that a warning precedes the end of the run.
        self._quiet = min(quiet_seconds, max(LEAST_LIMIT_SECONDS, self._limits.shortest) / 2)
        now = time.monotonic()
        # rank 0 reads all heartbeats, the others read rank 0's
        peers = range(world.world_size) if world.rank == 0 else (0,)
        self._vigil = LastHeardMonitor(
            [r for r in peers if r != world.rank], now, self._quiet, sign, self._limits
        )
        self._lateness = StragglerMonitor(world.rank, self._limits, now)
        self._pulse = PauseDetector(self._quiet, now)
        self._answered = now  # when the store last responded
        self._store_missed = False  # its silence was reported
        self._stood_still, self._lost_share = 0.0, 0.0
        self._store: SignedStore | None = None
        self._roll: RollCall | None = None  # rank 0's last
        self._stop, self._lost, self._reported = threading.Event(), threading.Event(), threading.Event()
        self._own = threading.Event()  # this rank reports its own error: the threads do nothing
        self._following = threading.Event()  # another rank failed or is silent: this process is about to exit
        self._foreign: tuple[int, Diagnostic] | None = None
        self.silent_ranks: list[int] = []
        self._threads: list[threading.Thread] = []
        # The kernel must not cut a line before the run's own limit for a network that is down.
        patience = max(LEAST_LIMIT_SECONDS, self._limits.longest)
        self._presence = LivenessSocket(world.rank, world.world_size, world.secret, self._line_cut, patience)

    def start(self) -> Alarm:
        """Connect to the store and start watching; return self.

        It uses its own connection, since the process group's may be blocked in a wait.
        """
        if self._world.world_size == 1:
            return self
        env = self._world.env
        # The ranks have met, so the store answers at once; a minute is for a loaded machine.
        store = connect_store(env, min(60.0, self._world.timeout_seconds), may_host=False)
        self._store = SignedStore(store, self._world.secret, env.store_prefix, self._forged)
        self._open_line()
        for name, run in (("alarm", self._talk), ("alarm-clock", self._keep_clock)):
            thread = threading.Thread(target=run, name=f"paceline-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def stop(self) -> None:
        """Stop watching.

        Called on success, after the last collective, before ``World.close(ok=True)`` returns.
        """
        self._stop.set()
        self._presence.stop()
        # One deadline for both threads: a thread that blocks in the store is a daemon and may stay.
        deadline = time.monotonic() + _QUERY_SECONDS
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=max(0.0, deadline - time.monotonic()))

    def await_root_cause(self, seconds: float, *, timed_out: bool = False) -> bool:
        """For an error caused by another rank's (``is_cascade``): wait for that rank's own error.

        If it arrives, the process exits in here with PEER_FAILED. Returns False if none arrives: the other
        rank was killed, and ``silent_ranks`` are those without a heartbeat meanwhile. If a collective
        ``timed_out`` and there are such ranks, they hang, and the process exits in here with PEER_SILENT.
        """
        if self._store is None:
            return False
        silent, answers = self._unheard_meanwhile(seconds)
        unanswered = time.monotonic() - self._answered
        while self._following.is_set():
            time.sleep(0.1)  # the clock thread is about to end this process
        self.silent_ranks = [rank for rank in silent if rank != self._world.rank]
        # No error was published: a timeout of a collective is the fault of the silent ranks, or of the store.
        if timed_out and self.silent_ranks:
            self._end_in_silence(self._rank_silent(self.silent_ranks, self._own_limit.seconds))
        if timed_out and not answers and unanswered > seconds:
            self._end_in_silence(self._store_silent(unanswered))
        return False

    def _unheard_meanwhile(self, seconds: float) -> tuple[list[int], bool]:
        """Return the ranks that rank 0 does not hear for some seconds, and whether the store answers.

        The first of the two roll calls is one that began now: it holds heartbeats from before the error. Rank
        0 itself is silent if it writes none.
        """
        now, first, earlier = time.monotonic(), self._roll_call(), None
        last, most = first, now + seconds + SILENT_SECONDS
        while (left := most - time.monotonic()) > 0 and not self._following.wait(min(POLL_SECONDS, left)):
            roll = self._roll_call()
            last = roll or last
            if roll is None or first is None:
                first = first or roll
                if time.monotonic() > now + seconds:
                    break
            # A roll call two numbers later was made after the error, from heartbeats read since.
            elif earlier is None:
                earlier = roll if roll.number >= first.number + 2 else None
            elif roll.at >= earlier.at + SILENT_SECONDS and time.monotonic() > now + seconds:
                return roll.silent_since(earlier), True
        answers = self._roll_call() is not None
        # Rank 0 has written no roll call meanwhile, though the store answers: rank 0 itself is silent.
        stands = first is not None and last is not None and last.number == first.number
        return [0] if answers and stands and not self._following.is_set() else [], answers

    def raise_error(self, diagnostic: Diagnostic, exit_code: int = ExitCode.FAILED) -> bool:
        """Publish this rank's error and wait (≤ 3 s) until the others have read it.

        The first rank to publish wins; returns whether it was this one. Never raises, since a failure to
        report must not hide the error; a store that does not respond is abandoned.
        """
        self._own.set()
        return self._store is None or self._publish(diagnostic, exit_code, len(self.silent_ranks))

    def _publish(self, diagnostic: Diagnostic, exit_code: int, silent: int) -> bool:
        # silent ranks will acknowledge nothing
        store, readers = self._store, self._world.world_size - silent
        assert store is not None
        text = failure_message(self._world.rank, diagnostic, exit_code)

        def publish() -> bool:
            # Only one error is read by all, the root cause; errors that follow from it find the key taken.
            first = store.set_first("error", text)
            store.add("error/read", 1)
            deadline = time.monotonic() + _READ_SECONDS
            # Exiting at once would take the store down (rank 0) before the others have read the error.
            while store.add("error/read", 0) < readers and time.monotonic() < deadline:
                time.sleep(0.05)
            return first

        try:
            return call_with_timeout(_READ_SECONDS + _QUERY_SECONDS, publish, "publishing an error")
        except (RuntimeError, TimeoutError):
            return True  # the store is gone or silent: no one left to inform

    # -- the line to rank 0, which breaks when a process dies

    def _open_line(self) -> None:
        """Rank 0 publishes where it listens; the others connect. Without a line heartbeats remain."""
        store, env = self._store, self._world.env
        assert store is not None
        try:
            if self._world.rank == 0:
                address = ""  # nowhere: the others wait for the answer
                try:
                    address = self._presence.listen(own_address(env.meeting_host, env.master_port))
                finally:
                    store.set(_LINES, address)
            else:
                address = call_with_timeout(
                    _LINE_SECONDS, lambda: store.get_all([_LINES])[0] or "", "rank 0's address"
                )
                self._presence.connect(address)
        # No line is a warning: deaths are still noticed, but only by silence.
        except (RuntimeError, ValueError, OSError) as exc:  # TimeoutError is an OSError
            self._warn(
                codes.RUNTIME_NO_LINE(
                    f"rank {self._world.rank} has no connection to rank 0 that would report its death",
                    f"rank {self._world.rank}",
                    str(exc)[:200],
                    "open the ports between the nodes; else a death is noticed after training.ddp_timeout",
                    Severity.WARNING,
                ),
                self._world.rank < 2,
            )

    def _line_cut(self, rank: int) -> None:
        """Another rank's process is gone: what it or its launcher says of it within seconds counts first.

        One that goes on giving signs of life is not: something in between has reset the connection.
        """
        # Waits first: that rank's error, or its launcher's report, says more than a cut line.
        cut = time.monotonic()
        while time.monotonic() < cut + GONE_SECONDS:
            if self._stop.wait(TICK_SECONDS) or self._own.is_set() or self._following.is_set():
                return
        if self._vigil.is_done(rank):
            return
        # heartbeats of the first half may have been on their way when the line broke
        if self._vigil.heard_since(rank, cut + GONE_SECONDS / 2):
            self._warn(
                codes.RUNTIME_NO_LINE(
                    f"the line to rank {rank} was cut, but the rank lives: its death would be noticed later",
                    f"rank {rank}",
                    "",
                    "find what resets idle connections between the nodes (a firewall, a NAT)",
                    Severity.WARNING,
                ),
                True,
            )
            return
        self._following.set()
        seen = self._vigil.last_seen(rank)
        evidence = {"silent_ranks": [rank]}
        finding = codes.RUNTIME_RANK_DIED(f"rank {rank}", seen, rank=rank, evidence=evidence)
        self._report(rank, finding, ExitCode.PEER_FAILED)
        # One reader fewer: the dead rank acknowledges nothing.
        self._publish(finding, ExitCode.PEER_FAILED, 1)
        exit_now(ExitCode.PEER_FAILED)

    # -- the thread that talks to the store

    def _talk(self) -> None:
        assert self._store is not None
        mine = alive_key(self._world.rank)
        beats, next_beat = 0, 0.0
        try:
            # Every call below may block as long as the store does; ``_keep_clock`` judges by the clock.
            while not self._stop.wait(POLL_SECONDS):
                message = parsed_failure(self._store.get("error"))
                self._answered = time.monotonic()
                if message is not None and message[0] != self._world.rank and not self._own.is_set():
                    self._foreign = message
                    # acknowledge only once the callback has written this rank's log
                    self._reported.wait(_CALLBACK_SECONDS + 1)
                    self._store.add("error/read", 1)
                    return
                if time.monotonic() >= next_beat:
                    beats, next_beat = beats + 1, time.monotonic() + BEAT_SECONDS
                    beat = HeartbeatRecord(
                        beats, *self._doing(), self._lost_share, waits=self._lateness.waits, place=place()
                    )
                    self._store.set(mine, beat.text())
                    self._answered = time.monotonic()
                    self._listen()
                    if self._world.rank == 0:
                        self._call_roll(beat)
            # The last word: from now on silence of this rank is its orderly end.
            self._store.set(mine, HeartbeatRecord(beats + 1, *self._doing(), done=True).text())
        except RuntimeError:
            self._lost.set()

    def _listen(self) -> None:
        """Read heartbeats: rank 0 those of all ranks, the others rank 0's."""
        assert self._store is not None
        ranks = range(self._world.world_size) if self._world.rank == 0 else (0,)
        # In blocks: one call for thousands of keys would hold the store's single thread for too long.
        for start in range(0, len(ranks), _BEATS_PER_SECOND):
            some = ranks[start : start + _BEATS_PER_SECOND]
            texts = self._store.get_all([alive_key(r) for r in some])
            self._answered = now = time.monotonic()
            for rank, text in zip(some, texts, strict=True):
                self._vigil.hear(rank, text, now)

    def _call_roll(self, own: HeartbeatRecord) -> None:
        """Write down, on rank 0, what is known of all ranks: the others read this one key."""
        assert self._store is not None
        now, beats = time.monotonic(), self._vigil.beats()
        everyone = [own, *(beats.get(rank) for rank in range(1, self._world.world_size))]
        self._roll = RollCall.of(own.count, now, everyone, self._vigil.heard(), self._limits)
        self._store.set(KEY, self._roll.text())

    # -- the thread that keeps the clock, and never waits for anything

    def _keep_clock(self) -> None:
        last = time.monotonic()
        while not self._stop.wait(TICK_SECONDS):
            now = time.monotonic()
            # How much later than planned this thread woke: the process was stopped, or starved of CPU.
            late, last = now - last - TICK_SECONDS, now
            self._pulse.tick(now, max(0.0, late))
            self._lost_share = self._pulse.lost(now)
            if late > _STILL_SECONDS:
                self._was_still(late, now)
            if self._own.is_set():
                continue
            if self._foreign is not None:
                self._follow(*self._foreign)
            elif self._lost.is_set():
                self._store_lost()
                return
            else:
                self._judge(now)

    def _was_still(self, seconds: float, now: float) -> None:
        """This process itself was stopped for ``seconds``: do not count that time as silence of the others.

        If it exceeds the limit, they may have given up: they get ``_DOUBT_SECONDS`` to send a heartbeat.
        """
        self._stood_still = max(self._stood_still, seconds)
        self._answered = min(now, self._answered + seconds)
        self._vigil.forgive(seconds, now)
        if seconds >= self._longest_silence:
            self._answered = now - self._longest_silence + _DOUBT_SECONDS
            self._vigil.doubt(self._answered)

    @property
    def _own_limit(self) -> Limit:
        """How long ranks wait for one of them in what this rank does now."""
        return self._limits.in_phase(self._doing()[1])

    @property
    def _longest_silence(self) -> float:
        """For how long the store may be silent."""
        return max(LEAST_LIMIT_SECONDS, self._own_limit.seconds)

    def _judge(self, now: float) -> None:
        """End the run because of silence, or warn of it."""
        unanswered = now - self._answered
        if unanswered > self._longest_silence:
            self._end_in_silence(self._store_silent(unanswered))
        # while the store is silent no heartbeat arrives, and only the store is to blame
        hears = unanswered < _DEAF_SECONDS
        if hears and (silent := self._vigil.overdue(now, LEAST_LIMIT_SECONDS)):
            limit = self._vigil.limit(silent[0]).seconds
            self._end_in_silence(self._rank_silent(silent, max(LEAST_LIMIT_SECONDS, limit)))
        stops = self._stopping()
        # A rank that waits judges by itself: rank 0, which hears all, may be the one that hangs.
        wait = self._lateness.look(now, stops=stops)
        if wait is not None and (roll := self._current_roll(now)) is not None:
            late = self._lateness.judge(wait, self._doing()[1], roll, stops=stops)
            if late is not None:
                self._end_in_silence(late)
        loud = self._world.rank in (0, 1)  # rank 1 reports if rank 0 is the silent one
        if unanswered > self._quiet and not self._store_missed:
            self._warn(self._store_silent(unanswered, Severity.WARNING), loud)
        self._store_missed = unanswered > self._quiet
        if hears:
            for finding in self._vigil.news(now):
                self._warn(finding, loud)

    def _follow(self, rank: int, diagnostic: Diagnostic) -> None:
        """Report another rank's failure, then exit this process, whatever its main thread waits for."""
        self._following.set()
        self._report(rank, diagnostic, ExitCode.PEER_FAILED)
        self._reported.set()
        # Launchers report the process that exits first: it should be the one with the error.
        time.sleep(_FOLLOW_SECONDS)
        if self._own.is_set():
            self._following.clear()
        else:
            exit_now(ExitCode.PEER_FAILED)

    def _store_lost(self) -> None:
        """The store's host vanished without an error: it died, or the run is over and ``stop`` follows."""
        # At the end of a run rank 0 may close the store while another rank is about to call ``stop``.
        if self._stop.wait(2.0) or self._own.is_set():
            return
        self._following.set()
        env = self._world.env
        where, host = store_place(env)
        evidence = {"silent_ranks": [] if env.agent_store else [0]}
        lost = codes.RUNTIME_STORE_LOST(where, "connection lost", host=host, evidence=evidence)
        self._report(0, lost, ExitCode.PEER_FAILED)
        exit_now(ExitCode.PEER_FAILED)

    def _end_in_silence(self, diagnostic: Diagnostic) -> None:
        """Report the silent ranks, here and through the store if it responds, and exit this process."""
        self._following.set()
        silent = diagnostic.evidence.get("silent_ranks") or [0]
        self._report(diagnostic.evidence.get("rank", silent[0]), diagnostic, ExitCode.PEER_SILENT)
        # A store that is silent takes no message.
        if diagnostic.code != codes.RUNTIME_STORE_SILENT.name:
            self._publish(
                diagnostic, ExitCode.PEER_SILENT, len(diagnostic.evidence.get("silent_ranks") or ())
            )
        exit_now(ExitCode.PEER_SILENT)

    def _forged(self, key: str) -> None:
        """A value in the store is not from a rank of this run: ignore it.

        Rank 0, which reads every key, warns.
        """
        rank = self._world.rank
        self._warn(codes.RUNTIME_STORE_FORGED(f"rank {rank}", key), rank == 0)

    def _report(self, rank: int, diagnostic: Diagnostic, code: int) -> None:
        """Run the callback in a thread with a deadline: the main thread may hold a lock that it needs."""

        _called(lambda: self._on_foreign(rank, diagnostic, int(code)))

    def _warn(self, finding: Diagnostic, loud: bool) -> None:
        _called(lambda: self._on_warning(finding, loud))

    def _rank_silent(self, ranks: list[int], seconds: float) -> Diagnostic:
        seen = [self._vigil.last_seen(r) for r in ranks[:4]]
        return rank_silent(ranks, seconds, seen, self._stood_still, self._vigil.limit(ranks[0]).key)

    def _store_silent(self, seconds: float, severity: Severity = Severity.ERROR) -> Diagnostic:
        return store_silent(self._world.env, seconds, self._sign, self._stood_still, severity)

    def _current_roll(self, now: float) -> RollCall | None:
        """Return the last roll call. If rank 0 is not heard any more, it tells of rank 0 alone."""
        roll = self._roll_call()
        # A roll call that is no longer renewed accuses ranks by heartbeats that nobody reads.
        if roll is None or self._world.rank == 0 or self._vigil.heard_since(0, now - _OLD_SECONDS):
            return roll
        return replace(roll, busy=[named for named in roll.busy if named[0] == 0])

    def _roll_call(self) -> RollCall | None:
        """Return rank 0's last roll call; None if there is none yet, or the store is gone or silent."""
        store = self._store
        assert store is not None
        if self._world.rank == 0:
            return self._roll
        with contextlib.suppress(RuntimeError, TimeoutError):
            text = call_with_timeout(_QUERY_SECONDS, lambda: store.get(KEY), "checking signs of life")
            return RollCall.parsed(text)
        return None


def _called(call: Callable[[], None]) -> None:
    def run() -> None:
        try:
            call()
        except Exception:  # noqa: BLE001 - a failing callback must not keep this rank alive
            traceback.print_exc()

    with contextlib.suppress(TimeoutError):
        call_with_timeout(_CALLBACK_SECONDS, run, "alarm-callback")
