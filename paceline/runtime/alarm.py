"""Errors cross ranks without a collective (contract 7): a rank inside an all-reduce cannot be asked, but it can be told.

    failing rank   publishes its diagnostic in the store → waits until the others have read it (a few seconds) → exits with its own code
    other ranks    a daemon thread polls the key → callback (writes the error to this rank's log) → says "read" → ends the process

The others leave a moment after the failing rank, so that whoever started the processes sees the root cause fail first.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable

import torch.distributed as dist

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ExitCode, PacelineError
from paceline.runtime.meeting import connect_store, name_of
from paceline.runtime.signed import SignedStore
from paceline.runtime.world import World

POLL_SECONDS = 0.3
BEAT_SECONDS = 1.0
DIAGNOSTIC_LIMIT_BYTES = 32 * 1024
_READ_SECONDS = 3.0  # the failing rank waits this long for the others to read
_FOLLOW_SECONDS = 1.0  # the others let the failing rank exit first
_CALLBACK_SECONDS = 5.0
_CASCADE_WORDS = (  # what a healthy rank sees when its peer is gone (gloo, nccl, the store)
    "connection reset",
    "connection closed",
    "connection refused",
    "broken pipe",
    "timed out waiting",
    "wait timeout",
    "socket timeout",
    "socket closed",
    "connectfullmesh",
    "remote peer",
    "peer closed",
    "remote process exited",
    "process group watchdog",
    "nccl communicator was aborted",
    "ncclremoteerror",
    "ncclsystemerror",
    "gloo/transport",
    "connection was likely closed",
    "failed to recv",
    "sendbytes failed",
    "recvvalue failed",
)

_CODE = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)+")

OnForeign = Callable[[int, Diagnostic], None]


class Alarm:
    """Tells the others why this rank fails, and this rank why another failed. Does nothing in a world of one.

    ``on_foreign(rank, diagnostic)`` is called from the daemon thread with the failing rank's own diagnostic, before the
    process ends with ``ExitCode.PEER_FAILED``; it should write and flush, nothing else.
    """

    def __init__(self, world: World, on_foreign: OnForeign | None = None) -> None:
        self._world = world
        self._on_foreign = on_foreign or _print_foreign
        self._store: SignedStore | None = None
        self._stop = threading.Event()
        self._own = threading.Event()  # this rank reports an error of its own: the thread keeps out
        self._following = threading.Event()  # another rank's error has come: this process is about to end
        self.silent_ranks: list[int] = []
        self._thread: threading.Thread | None = None

    def start(self) -> Alarm:
        """Connect (a connection of its own: the process group's may be blocked in a wait) and begin to poll; returns itself."""
        if self._world.world_size == 1:
            return self
        env = self._world.env
        store = connect_store(env, min(60.0, self._world.timeout_seconds), may_host=False)
        self._store = SignedStore(store, self._world.secret, name_of(env), self._forged)
        self._thread = threading.Thread(target=self._watch, name="paceline-alarm", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """All is well: stop polling. Called after the last collective, before ``World.close(ok=True)`` returns."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def await_root_cause(self, seconds: float) -> bool:
        """For an error that only echoes another rank's (``is_cascade``): wait for that rank's own. If it comes, the process ends in here
        with PEER_FAILED. False when none came: the other rank was killed, and ``silent_ranks`` names those that gave no sign of life meanwhile.
        """
        if self._store is None:
            return False
        before = None if self._following.is_set() else self._beats()
        self._following.wait(seconds)
        while self._following.is_set():
            time.sleep(0.1)  # the thread is about to end this process
        after = self._beats()
        others = [r for r in range(self._world.world_size) if r != self._world.rank]
        self.silent_ranks = [r for r in others if before and after and before[r] == after[r] != "done"]
        return False

    def raise_error(self, diagnostic: Diagnostic, exit_code: int = ExitCode.FAILED) -> bool:
        """Publish this rank's error and wait (≤ 3 s) until the others have read it. The first rank to publish wins; returns whether it was this one.

        Never raises: an error on the way to report an error must not hide it.
        """
        self._own.set()
        if self._store is None:
            return True
        try:
            mine = json.dumps(
                {"rank": self._world.rank, "exit_code": int(exit_code), "diagnostic": _bounded(diagnostic)}
            )
            first = self._store.set_first("error", mine)
            self._store.add("error/read", 1)
            deadline = time.monotonic() + _READ_SECONDS
            while self._store.add("error/read", 0) < self._world.world_size and time.monotonic() < deadline:
                time.sleep(0.05)
        except RuntimeError:
            return True  # the store is gone: nobody is left to be told
        return first

    def _watch(self) -> None:
        last_beat, beats = 0.0, 0
        assert self._store is not None
        while not self._stop.wait(POLL_SECONDS):
            try:
                message = heard(self._store.get("error"))
                if message is not None:
                    self._follow(*message)
                    return
                if time.monotonic() - last_beat >= BEAT_SECONDS:
                    last_beat, beats = time.monotonic(), beats + 1
                    self._store.set(f"alive/{self._world.rank}", str(beats))
            except RuntimeError:
                self._store_lost()
                return
        with contextlib.suppress(RuntimeError):
            self._store.set(f"alive/{self._world.rank}", "done")

    def _follow(self, rank: int, diagnostic: Diagnostic) -> None:
        """Another rank has failed: say so here, then end this process, whatever its main thread waits for."""
        if rank == self._world.rank or self._own.is_set():
            return
        assert self._store is not None
        self._following.set()
        self._say(rank, diagnostic)
        with contextlib.suppress(RuntimeError):
            self._store.add("error/read", 1)
        time.sleep(_FOLLOW_SECONDS)
        if self._own.is_set():
            self._following.clear()
        else:
            leave(ExitCode.PEER_FAILED)

    def _store_lost(self) -> None:
        """The host of the store vanished without publishing: it can only have died (or the run is over and ``stop`` is about to be called)."""
        if self._stop.wait(2.0) or self._own.is_set():
            return
        env = self._world.env
        host = "the launcher's agent" if env.agent_store else "rank 0"
        self._following.set()
        self._say(
            0,
            Diagnostic(
                "runtime.store_lost",
                f"{host}, which hosts the ranks' meeting point, is gone without a word",
                where=f"{env.master_addr}:{env.master_port}",
                found="connection lost",
                hint=f"the output of {host} and the kernel log of its node (dmesg: Out of memory)",
                evidence={"silent_ranks": [] if env.agent_store else [0]},
            ),
        )
        leave(ExitCode.PEER_FAILED)

    def _forged(self, key: str) -> None:
        """Somebody else writes into the store. Nothing of it is believed or shown; rank 0, which reads every key, says so."""
        if self._world.rank != 0:
            return
        what = "a value in the ranks' store was not written by a rank of this run; such values are ignored, and this is said once"
        hint = "who else can reach that port? One address of a network of your own: launch.master_addr"
        print(Diagnostic("runtime.store_forged", what, f"rank {self._world.rank}", key, hint, Severity.WARNING).render(), file=sys.stderr, flush=True)  # fmt: skip

    def _say(self, rank: int, diagnostic: Diagnostic) -> None:
        """Run the callback in a thread with a deadline: the main thread may hold a lock that it needs."""

        def call() -> None:
            try:
                self._on_foreign(rank, diagnostic)
            except Exception:  # noqa: BLE001 - a failing callback must not keep this rank alive
                traceback.print_exc()

        speaker = threading.Thread(target=call, name="paceline-alarm-callback", daemon=True)
        speaker.start()
        speaker.join(timeout=_CALLBACK_SECONDS)

    def _beats(self) -> list[str] | None:
        """The last sign of life of each rank, or None when the store is gone."""
        assert self._store is not None
        try:
            keys = [f"alive/{r}" for r in range(self._world.world_size)]
            return [beat or "" for beat in self._store.get_all(keys)]
        except RuntimeError:
            return None


def heard(text: str | None) -> tuple[int, Diagnostic] | None:
    """The rank and its error in what a rank has published; None for nothing, or for what no rank writes (without a secret anybody may)."""
    if text is None:
        return None
    try:
        message = json.loads(text)
        rank, found = int(message["rank"]), message["diagnostic"]
        words = {name: str(found.get(name, "")) for name in ("code", "what", "where", "found", "hint")}
        if not _CODE.fullmatch(words["code"]) or not words["what"]:
            return None
        code, what, where, place, hint = words.values()
        return rank, Diagnostic(code, what, where, place, hint, evidence=dict(found.get("evidence") or {}))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def is_cascade(exc: BaseException) -> bool:
    """Whether ``exc`` reads like the echo of another rank's failure rather than a failure of this one."""
    if isinstance(exc, PacelineError):
        return False
    if isinstance(exc, ConnectionError | dist.DistNetworkError | dist.DistStoreError):
        return True
    text = str(exc).lower()
    return isinstance(exc, RuntimeError) and any(word in text for word in _CASCADE_WORDS)


def leave(code: int) -> None:
    """Flush and end the process at once, without destructors: what is left of a broken process group can hang in them."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(int(code))


def _bounded(diagnostic: Diagnostic) -> dict[str, object]:
    """The diagnostic as JSON of at most DIAGNOSTIC_LIMIT_BYTES: evidence goes first, then text is cut."""
    data = diagnostic.to_json()
    if len(json.dumps(data, default=str)) <= DIAGNOSTIC_LIMIT_BYTES:
        return json.loads(json.dumps(data, default=str))
    data["evidence"] = {"cut": "the full evidence is in the failing rank's log"}
    return {k: v[:4000] if isinstance(v, str) else v for k, v in data.items()}


def _print_foreign(rank: int, diagnostic: Diagnostic) -> None:
    print(f"rank {rank} failed, so this rank ends too:\n{diagnostic.render()}", file=sys.stderr, flush=True)
