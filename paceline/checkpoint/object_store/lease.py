"""Who writes to a URL: claims, numbered as commits are, and kept alive while their run lives.

The newest claim is the writer's. A claim can be taken over when its run has ended, died on this machine, or
said nothing for ``LEASE_SECONDS`` by the store's own clock.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from paceline.checkpoint import codes
from paceline.checkpoint.object_store.commits import last_object, numbered
from paceline.checkpoint.object_store.interface import (
    ObjectStore,
    StoreRefused,
    again,
    create_own,
)
from paceline.checkpoint.object_store.obstore_backend import no_conditional_create
from paceline.config.registries.object_store_url import ObjectUrl
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError
from paceline.core.json_types import JsonObject

CLAIMS, PROBES = "claims", "probes"
# Four beats in a row must be lost before a lease ends.
LEASE_SECONDS, _BEAT_SECONDS, _LOOK_SECONDS = 90.0, 20.0, 5.0


@dataclass(frozen=True)
class Lease:
    """The length of a lease, and how one waits for its end; tests shorten both."""

    seconds: float = LEASE_SECONDS
    beat_seconds: float = _BEAT_SECONDS
    pause: Callable[[float], None] = time.sleep


def last_run(store: ObjectStore) -> str | None:
    """Return the name of the run that has claimed the URL last; None if none has."""
    last = last_object(store, CLAIMS)
    return str(_claim_at(store, last).get("run")) if last else None


class Claim:
    """This process's claim, alive until ``end``."""

    def __init__(self, store: ObjectStore, number: int, writer: str, lease: Lease) -> None:
        self.number, self.writer, self._store, self._lease = number, writer, store, lease
        self._ended = threading.Event()
        threading.Thread(target=self._beat, name="paceline-claim", daemon=True).start()

    def is_current(self) -> bool:
        """Whether nobody has taken over."""
        return again(lambda: self._store.facts(numbered(CLAIMS, self.number + 1))) is None

    def end(self) -> None:
        """Let the next run take over at once."""
        self._ended.set()
        with suppress(CheckpointError):  # then it waits for the lease's end
            again(lambda: self._store.put(_beside(self.number, "ended"), b"{}\n"))

    def _beat(self) -> None:
        while not self._ended.wait(self._lease.beat_seconds):
            with suppress(CheckpointError):  # the next one may arrive; without any the lease ends
                self._store.put(_beside(self.number, "alive"), b"{}\n")


def check_store(store: ObjectStore, url: ObjectUrl) -> datetime:
    """Check that this process may write and remove objects, and that a create is refused where the object
    exists. Return the store's time. Raises StoreRefused and StoreUnavailable.
    """
    # A name of its own each time: two runs that start together do not meet here.
    name = f"{PROBES}/{os.urandom(8).hex()}"
    try:
        if not create_own(store, name, b"1\n"):
            raise StoreRefused(no_conditional_create(url, "a new object could not be created"))
        if again(lambda: store.create(name, b"2\n")) or again(lambda: store.get(name)) != b"1\n":
            raise StoreRefused(no_conditional_create(url, "a second create was not refused"))
        facts = again(lambda: store.facts(name))
    finally:
        with suppress(CheckpointError):  # an error from above is the one to name
            store.delete([name])
    if facts is None:
        raise StoreRefused(
            codes.OBJECTS_UNAVAILABLE(
                "an object that was just written is not there",
                str(url),
                name,
                "use a store whose reads see its writes",
            )
        )
    return facts.modified


def wait_until_free(store: ObjectStore, url: ObjectUrl, run: str, lease: Lease) -> int:
    """Return the number of the newest claim (0: none) once ``run`` may take over.

    It waits for no longer than a lease. Raises CheckpointError ``objects.in_use`` if its run lives.
    """
    last, waited, first_sign = last_object(store, CLAIMS), 0.0, None
    while last:
        held = _claim_at(store, last)
        if held.get("run") == run or _died_here(held) or _was_given_back(store, last):
            break
        sign = _last_sign(store, last)
        age = (check_store(store, url) - sign).total_seconds()
        first_sign = first_sign or sign
        if age >= lease.seconds:
            break
        if sign != first_sign or waited > 2 * lease.seconds:
            raise CheckpointError(_in_use(url, held, age))
        step = min(_LOOK_SECONDS, max(0.05, lease.seconds - age))
        lease.pause(step)
        waited += step
        last = last_object(store, CLAIMS)
    return last


def take_claim(store: ObjectStore, url: ObjectUrl, run: str, lease: Lease) -> Claim:
    """Claim the URL for ``run``. Raises CheckpointError ``objects.in_use``."""
    number, writer = wait_until_free(store, url, run, lease) + 1, os.urandom(8).hex()
    content: JsonObject = {
        "run": run,
        "writer": writer,
        "host": socket.gethostname(),
        "since": round(time.time()),
        **this_process(),
    }
    if not create_own(store, numbered(CLAIMS, number), json.dumps(content, indent=1).encode()):
        raise CheckpointError(_in_use(url, _claim_at(store, number), 0.0))
    return Claim(store, number, writer, lease)


def _beside(number: int, word: str) -> str:
    return f"{CLAIMS}/{number:08d}.{word}"


def _last_sign(store: ObjectStore, number: int) -> datetime:
    """Return when a claim was last heard of."""
    names = (numbered(CLAIMS, number), _beside(number, "alive"))
    signs = [again(partial(store.facts, name)) for name in names]
    return max(facts.modified for facts in signs if facts is not None)


def _was_given_back(store: ObjectStore, number: int) -> bool:
    return again(lambda: store.facts(_beside(number, "ended"))) is not None


def _claim_at(store: ObjectStore, number: int) -> JsonObject:
    """Return what a claim says; empty if it cannot be read."""
    try:
        claim = json.loads(again(lambda: store.get(numbered(CLAIMS, number))) or b"{}")
    except ValueError:
        return {}
    return claim if isinstance(claim, dict) else {}


def _in_use(url: ObjectUrl, held: JsonObject, age: float) -> Diagnostic:
    return codes.OBJECTS_IN_USE(
        "training.checkpoint_url",
        f"{url}: run {str(held.get('run', 'unknown'))[:16]} on {str(held.get('host', 'unknown'))[:80]},"
        f" alive {max(0.0, age):.0f} s ago",
    )


def this_process() -> JsonObject:
    """Return what shows, on this machine, whether the process still lives."""
    try:
        return {
            "boot": Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
            "processes": os.readlink("/proc/self/ns/pid"),
            "pid": os.getpid(),
            "started": started_at(os.getpid()),
        }
    except OSError:
        return {}


def _died_here(held: JsonObject) -> bool:
    """Whether the claim is of a process of this machine that is gone."""
    mine, pid = this_process(), held.get("pid")
    if not mine or type(pid) is not int or any(held.get(key) != mine[key] for key in ("boot", "processes")):
        return False
    try:
        return started_at(pid) != held.get("started")
    except FileNotFoundError:
        return True
    except OSError:
        return False


def started_at(pid: int) -> str:
    """Return field 22 of proc(5): the process's start, in ticks since the boot. Raises OSError."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
