"""The writer of a URL, on rank 0: its claim, folders for uploads, commits, and the removal of what no commit
names.

The run with the newest claim is the writer. A claim can be taken over when its run has ended, died on this
machine, or not renewed it for ``LEASE_SECONDS`` by the store's clock.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from paceline.checkpoint import codes
from paceline.checkpoint.format.manifest import MANIFEST, MAX_MANIFEST_BYTES, Manifest
from paceline.checkpoint.object_store.commits import (
    DATA,
    Commit,
    StoredCheckpoint,
    last_object,
    numbered,
    read_commit,
    read_head,
)
from paceline.checkpoint.object_store.interface import (
    ObjectStore,
    StoreRefused,
    again,
    create_own,
)
from paceline.checkpoint.object_store.obstore_backend import no_conditional_create
from paceline.checkpoint.save.retention import RetentionRule
from paceline.config.registries.object_store_url import ObjectUrl
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError
from paceline.core.json_types import JsonObject

CLAIMS, PROBES = "claims", "probes"
# Four beats in a row must be lost before a lease ends.
LEASE_SECONDS, _BEAT_SECONDS, _LOOK_SECONDS = 90.0, 20.0, 5.0


@dataclass(frozen=True)
class Lease:
    """The length of a lease, and the way to wait for its end; tests shorten both."""

    seconds: float = LEASE_SECONDS
    beat_seconds: float = _BEAT_SECONDS
    pause: Callable[[float], None] = time.sleep


def last_run(store: ObjectStore) -> str | None:
    """Return the name of the run that has claimed the URL last; None if none has."""
    last = last_object(store, CLAIMS)
    return str(_claim_at(store, last).get("run")) if last else None


def holder(store: ObjectStore) -> str:
    """Return which run holds the URL, on which host, and when it was last heard of; empty if none does."""
    last = last_object(store, CLAIMS)
    if not last:
        return ""
    held, sign = _claim_at(store, last), _last_sign(store, last)
    who = f"run {str(held.get('run', 'unknown'))[:16]} on {str(held.get('host', 'unknown'))[:80]}"
    heard = f"last heard of {sign.isoformat(timespec='seconds')}"
    if again(partial(store.facts, _beside(last, "ended"))) is not None:
        return f"{who} has given it back, {heard}"
    return f"{who}, {heard}"


class Claim:
    """This process's claim, alive until ``end``."""

    def __init__(self, store: ObjectStore, number: int, writer: str, lease: Lease) -> None:
        self.number, self.writer, self._store, self._lease = number, writer, store, lease
        self._ended = threading.Event()
        # A daemon: a crash stops the beats, and the lease ends by itself.
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
        if held.get("run") == run or _died_here(held):
            break
        if again(partial(store.facts, _beside(last, "ended"))) is not None:  # it was given back
            break
        sign = _last_sign(store, last)
        # Both times are the store's: clocks of two hosts may differ by more than a lease.
        age = (check_store(store, url) - sign).total_seconds()
        first_sign = first_sign or sign
        if age >= lease.seconds:
            break
        # It has beaten while we waited: its run lives.
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
    # A conditional create decides between two runs that saw the same free claim.
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


def _claim_at(store: ObjectStore, number: int) -> JsonObject:
    """Return a claim's content; empty if it cannot be read."""
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
    """Return facts that show on this machine whether this process is still alive."""
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


_TRIES = 8  # numbers that an earlier request of ours may have taken after all


class StoreWriter:
    """Commits checkpoints to one URL, as the only run that does.

    ``open``, at the latest by the first upload, claims the URL and reads its last commit; ``close`` gives the
    claim back.
    """

    def __init__(
        self,
        store: ObjectStore,
        url: ObjectUrl,
        run: str,
        rule: RetentionRule,
        lease: Lease = Lease(),  # noqa: B008 (frozen)
    ) -> None:
        self._store, self._url, self._run, self._rule, self._lease = store, url, run, rule, lease
        self._claim: Claim | None = None
        self._last = 0  # number of the newest record
        self._checkpoints: tuple[StoredCheckpoint, ...] = ()
        self._dropped: tuple[str, ...] = ()
        self._failed: dict[str, tuple[str, ...]] = {}  # folder → names of files that may be in it

    @property
    def newest(self) -> StoredCheckpoint | None:
        """The newest committed checkpoint, once opened."""
        return self._checkpoints[-1] if self._checkpoints else None

    def open(self) -> None:
        """Claim the URL, if that has not been done. Raises CheckpointError."""
        if self._claim is not None:
            return
        claim = take_claim(self._store, self._url, self._run, self._lease)
        try:
            self._last, head = read_head(self._store, str(self._url))
        except BaseException:
            claim.end()
            raise
        self._claim = claim
        if head is not None:
            self._checkpoints, self._dropped = head.checkpoints, head.dropped
        self._dropped = tuple(dict.fromkeys((*self._dropped, *self._orphans())))

    def begin(self, name: str, files: Collection[str]) -> str:
        """Return a fresh folder for the files of checkpoint ``name``. Raises CheckpointError."""
        self.open()
        assert self._claim is not None
        self._still_ours()
        folder = f"{DATA}/{name}.{self._claim.number:08d}-{os.urandom(6).hex()}"
        # Until it is committed, its objects count as leftovers.
        self._failed[folder] = (*files, MANIFEST)
        return folder

    def commit(
        self, manifest: Manifest, name: str, folder: str, sizes: Mapping[str, int], best: str | None
    ) -> None:
        """Make a checkpoint whose files are in ``folder`` exist, if all are there. Raises CheckpointError."""
        assert self._claim is not None
        wanted = {file: entry.bytes for file, entry in manifest.files.items()}
        # Before the commit: a record must never name a checkpoint with a missing file.
        wrong = [file for file, size in wanted.items() if sizes.get(file) != size]
        if wrong or MANIFEST not in sizes:
            problem = "not every file of the checkpoint has gone up"
            raise CheckpointError(
                codes.OBJECTS_DAMAGED(
                    problem,
                    f"{self._url}/{folder}",
                    f"{(wrong or [MANIFEST])[0]}: {sizes.get((wrong or [MANIFEST])[0])} bytes there",
                )
            )
        added = StoredCheckpoint(name, manifest.step, manifest.sequence, manifest.total_bytes, folder)
        for _ in range(_TRIES):
            self._still_ours()
            commit = self._next(added, best)
            if create_own(self._store, commit.object_name, commit.to_bytes()):
                self._take(commit)
                return
            self._learn(commit.number)
        raise CheckpointError(self._other_writer("every next record exists already"))

    def remove_dropped(self) -> None:
        """Remove the objects that the last commit no longer names. Raises CheckpointError.

        Reads the newest record first, so that checkpoints in it stay.
        """
        _, head = read_head(self._store, str(self._url))
        if head is None:
            return
        self._spare(head.checkpoints)
        for folder, files in list(self._failed.items()):
            self._store.delete([f"{folder}/{file}" for file in files])
            del self._failed[folder]
        for folder in self._dropped:
            content = self._store.get(f"{folder}/{MANIFEST}")
            if content is not None and len(content) <= MAX_MANIFEST_BYTES:
                manifest = Manifest.from_bytes(content, folder)
                self._store.delete([f"{folder}/{file}" for file in (*manifest.files, MANIFEST)])
            else:  # without a manifest: what a listing shows
                self._store.delete(self._store.names(folder))
            self._dropped = tuple(dropped for dropped in self._dropped if dropped != folder)

    def close(self) -> None:
        """Give the claim back."""
        if self._claim is not None:
            self._claim.end()
            self._claim = None

    def _next(self, added: StoredCheckpoint, best: str | None) -> Commit:
        """Return the next record, with the checkpoints that retention keeps; the new one always stays."""
        assert self._claim is not None
        before = [checkpoint for checkpoint in self._checkpoints if checkpoint.name != added.name]
        kept = self._rule.reasons([*(checkpoint.name for checkpoint in before), added.name], best, None)
        stays = tuple(checkpoint for checkpoint in before if checkpoint.name in kept)
        gone = [checkpoint.folder for checkpoint in self._checkpoints if checkpoint not in stays]
        dropped = tuple(dict.fromkeys((*self._dropped, *gone)))
        return Commit(self._last + 1, self._claim.writer, time.time(), (*stays, added), dropped)

    def _take(self, commit: Commit) -> None:
        self._last, self._checkpoints, self._dropped = commit.number, commit.checkpoints, commit.dropped
        self._spare(commit.checkpoints)

    def _spare(self, checkpoints: Sequence[StoredCheckpoint]) -> None:
        """Cancel the removal of committed checkpoints' folders, since a commit that seemed to fail may have
        acted.
        """
        folders = {checkpoint.folder for checkpoint in checkpoints}
        self._failed = {folder: files for folder, files in self._failed.items() if folder not in folders}
        self._dropped = tuple(checkpoint for checkpoint in self._dropped if checkpoint not in folders)

    def _learn(self, number: int) -> None:
        """Adopt the existing record ``number``: an earlier try of ours that seemed to fail, or a partly
        written one. Raises CheckpointError ``objects.other_writer``.
        """
        assert self._claim is not None
        commit = read_commit(self._store, number, str(self._url))
        if commit is None:
            self._last = number
            return
        if commit.writer != self._claim.writer:
            raise CheckpointError(self._other_writer(f"{commit.object_name} is of another run"))
        self._take(commit)

    def _still_ours(self) -> None:
        assert self._claim is not None
        if not self._claim.is_current():
            raise CheckpointError(self._other_writer("a newer claim is there"))

    def _other_writer(self, sign: str) -> Diagnostic:
        return codes.OBJECTS_OTHER_WRITER("training.checkpoint_url", f"{self._url}: {sign}")

    def _orphans(self) -> Sequence[str]:
        """Return uncommitted folders of earlier runs, from a listing."""
        assert self._claim is not None
        known_folders = {*(checkpoint.folder for checkpoint in self._checkpoints), *self._dropped}
        folders = {"/".join(name.split("/")[:2]) for name in self._store.names(DATA)}
        return sorted(
            checkpoint for checkpoint in folders - known_folders if _claim_of(checkpoint) < self._claim.number
        )


def _claim_of(folder: str) -> int:
    """Return the number of the claim under which a folder was begun; a large one for any other name."""
    number = folder.rpartition(".")[2].partition("-")[0]
    return int(number) if len(number) == 8 and number.isdigit() and f"{DATA}/step-" in folder else 1 << 62
