"""Uploads during training: a thread on each rank, one checkpoint at a time, all ranks together."""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.checkpoint import codes
from paceline.checkpoint.collective import CheckpointWorld, on_all_ranks
from paceline.checkpoint.format.durable_files import replace_text
from paceline.checkpoint.format.manifest import MANIFEST, Manifest
from paceline.checkpoint.format.verify_files import read_manifest
from paceline.checkpoint.object_store.interface import ObjectStore
from paceline.checkpoint.object_store.obstore_backend import open_store
from paceline.checkpoint.object_store.transfer import files_of_rank, upload
from paceline.checkpoint.object_store.writer import StoreWriter
from paceline.checkpoint.save.retention import RetentionRule, being_read
from paceline.config.registries.object_store_url import ObjectUrl, parse_url
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import CheckpointError
from paceline.core.files import read_run_file
from paceline.core.rundir import RunDir
from paceline.core.units import human_bytes, human_seconds

_WAIT_SECONDS = 1.0
_LAST_SECONDS = 2.0  # for a commit that is under way when the time is over, and to give the URL back


#: Kubernetes and Slurm kill 30 seconds after they have asked, unless they are told otherwise.
AFTER_STOP_SECONDS = 25.0


@dataclass(frozen=True)
class Deadline:
    """``seconds`` from a stop on. ``since``: when this rank was asked to stop, by ``time.monotonic``; None
    before that.
    """

    seconds: float = AFTER_STOP_SECONDS
    since: Callable[[], float | None] = lambda: None

    def left(self) -> float:
        """Return the seconds that are left; infinity without a stop."""
        since = self.since()
        return math.inf if since is None else self.seconds - (time.monotonic() - since)


def open_uploads(text: str, run: RunDir, ranks: CheckpointWorld, rule: RetentionRule) -> Uploads:
    """Return the uploads of a run to the URL ``text``, which rank 0 claims. Raises CheckpointError and
    OSError.
    """
    url = parse_url(text)
    store = open_store(url)
    if ranks.rank:
        return Uploads(store, url, ranks, None)
    writer = StoreWriter(store, url, run_id(run), rule)
    writer.open()  # a second writer is refused before its first step
    return Uploads(store, url, ranks, writer)


def run_id(run: RunDir) -> str:
    """Return the run's unique id, created at the first call in a run directory. Raises OSError."""
    if not run.run_id.is_file():
        replace_text(run.run_id, os.urandom(8).hex() + "\n")
    return read_run_file(run.run_id).strip()


@dataclass(frozen=True)
class _Published:
    """A checkpoint that is durable on the disk. ``best``: the name of the checkpoint that retention always
    keeps.
    ``resumed``: an earlier run saved it, and may have uploaded it.
    """

    path: Path
    best: str | None
    resumed: bool = False


class Uploads:
    """Upload published checkpoints; if they come faster than uploads, only the newest.

    ``ranks`` meets the other ranks without collectives, over a separate connection; ``writer`` is rank 0's. A
    failure is a warning, and the next checkpoint is uploaded again; ``end`` raises the last one's failure.
    """

    def __init__(
        self,
        store: ObjectStore,
        url: ObjectUrl,
        ranks: CheckpointWorld,
        writer: StoreWriter | None,
    ) -> None:
        assert (ranks.rank == 0) == (writer is not None)
        self._store, self._url, self._ranks, self._writer = store, url, ranks, writer
        self._notes: queue.Queue[Diagnostic] = queue.Queue()
        self._waiting: queue.Queue[_Published | None] = queue.Queue()
        self._failed: _Published | None = None  # the newest, if it did not go up; alike on all ranks
        self._last: Path | None = None  # the newest that was published
        self._up: Path | None = None  # the newest that this run has committed; rank 0 knows
        self._committing = threading.Lock()
        self._given_up = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="paceline-uploads", daemon=True)
        self._thread.start()

    def published(self, path: Path, best: str | None = None) -> None:
        """Upload a checkpoint that has just been published. Every rank calls it for each checkpoint."""
        self._last = path
        self._waiting.put(_Published(path, best))

    def resumed(self, path: Path) -> None:
        """Upload the checkpoint that the run resumes from, unless the URL has one at least as new. All ranks
        call it."""
        self._last = path
        self._waiting.put(_Published(path, None, resumed=True))

    def end(
        self,
        waiting: Callable[[], None] = lambda: None,
        deadline: Deadline = Deadline(),  # noqa: B008 (frozen)
        any_rank: Callable[[bool], bool] = bool,
    ) -> bool:
        """Wait until the last checkpoint is uploaded; ``waiting`` is called meanwhile. Every rank calls it.

        Return False on all ranks if the upload was unfinished when the ``deadline`` of any rank passed;
        nothing is committed after that. ``any_rank`` (collective): whether a flag is True on any rank. Raises
        CheckpointError, the same on all ranks, if it could not be uploaded.
        """
        # The last item: the thread uploads what was published before, then ends.
        self._waiting.put(None)
        # Agreed on by all: uploads are collective, and a rank that left would hang the others.
        while not any_rank(not self._thread.is_alive()):
            if any_rank(deadline.left() <= 0):
                return any_rank(self._is_up_after_all(deadline.seconds))
            self._wait(waiting, deadline)
        while self._thread.is_alive() and deadline.left() > 0:  # rank 0's still removes what is old
            self._wait(waiting, deadline)
        if self._error is not None:
            raise self._error
        return True

    @property
    def is_working(self) -> bool:
        """Whether this rank's thread is working, perhaps after ``end``."""
        return self._thread.is_alive()

    def _wait(self, waiting: Callable[[], None], deadline: Deadline) -> None:
        self._thread.join(max(0.0, min(_WAIT_SECONDS, deadline.left())))
        waiting()

    def _is_up_after_all(self, seconds: float) -> bool:
        """Give up, on rank 0: commit nothing from now on, and release the URL for the next run. Return
        whether a commit came first.
        """
        if self._writer is None or self._last is None:
            return False
        if self._committing.acquire(timeout=_LAST_SECONDS):  # else its claim must outlive this process
            self._given_up = True
            self._committing.release()
            # In a thread, since a store that does not answer must not hold the end of the process.
            closing = threading.Thread(target=self._writer.close, name="paceline-upload-end", daemon=True)
            closing.start()
            closing.join(_LAST_SECONDS)
        if self._up == self._last:
            return True
        self._note(_left_behind(self._last, self._url, seconds))
        return False

    def take_notes(self) -> list[Diagnostic]:
        """Return each note and warning once, those of rank 0."""
        notes: list[Diagnostic] = []
        while not self._notes.empty():
            notes.append(self._notes.get())
        return notes

    def _run(self) -> None:
        try:
            while (published := self._waiting.get()) is not None:
                if self._is_newest(published):
                    self._try(published)
            if self._failed is not None:  # once more, since no other save will
                self._upload(self._failed)
        except BaseException as exc:  # noqa: BLE001 - raised again by ``end``
            self._error = exc
        finally:
            if self._writer is not None:
                self._writer.close()

    def _is_newest(self, published: _Published) -> bool:
        """Whether rank 0 uploads a checkpoint: no newer one is published, and the store does not have it
        already (a run may resume from an uploaded one). Collective.
        """
        newest, there = self._together(lambda: self._look_at(published))[0]
        if not newest and not published.resumed and self._ranks.rank == 0:
            self._note(codes.OBJECTS_SKIPPED(str(self._url), name=published.path.name))
        return newest and not there

    def _look_at(self, published: _Published) -> tuple[bool, bool]:
        """Return, on rank 0, whether no newer one is published, and whether the URL has one at least as
        new."""
        if self._writer is None:
            return True, False
        newest, there = self._waiting.empty() or self._ends_next(), False
        if published.resumed and newest:
            with suppress(CheckpointError):  # the upload will name it, as a warning
                self._writer.open()
                stored = self._writer.newest
                there = stored is not None and stored.sequence >= read_manifest(published.path).sequence
            self._up = published.path if there else self._up
        return newest, there

    def _ends_next(self) -> bool:
        with self._waiting.mutex:
            return self._waiting.queue[0] is None

    def _try(self, published: _Published) -> None:
        try:
            self._upload(published)
            self._failed = None
        except CheckpointError as error:
            self._failed = published
            name = published.path.name
            if self._ranks.rank == 0:
                for diagnostic in error.diagnostics:
                    self._note(
                        replace(
                            diagnostic,
                            what=f"{name} is on the disk, but was not uploaded: {diagnostic.what}",
                            severity=Severity.WARNING,
                        )
                    )

    def _upload(self, published: _Published) -> None:
        """Upload, compare, commit. Collective. Raises CheckpointError, the same on all ranks."""
        began = time.perf_counter()
        rank, writer, name = self._ranks.rank, self._writer, published.path.name
        manifests: list[Manifest] = []

        def begin() -> str:
            if writer is None:
                return ""
            manifests.append(read_manifest(published.path))
            return writer.begin(name, manifests[0].files)

        folder = self._together(begin)[0]
        files = list(manifests[0].files) if manifests else []

        def send() -> dict[str, int]:
            held = being_read(published.path) if (published.path / MANIFEST).is_file() else nullcontext()
            with held:  # retention may prune it meanwhile
                mine = files_of_rank(published.path, files, rank, self._ranks.world_size)
                return upload(self._store, published.path, mine, folder)

        sent = self._together(send)
        sizes = {file: size for of_rank in sent for file, size in of_rank.items()}

        def commit() -> None:
            if writer is None:
                return
            with self._committing:
                if self._given_up:
                    raise CheckpointError(
                        codes.OBJECTS_NOT_IN_TIME("the run has ended meanwhile", str(self._url))
                    )
                writer.commit(manifests[0], name, folder, sizes, published.best)
                self._up = published.path

        self._together(commit)
        if writer is not None:
            self._report(name, folder, sum(sizes.values()), time.perf_counter() - began)
            self._tidy(writer)

    def _report(self, name: str, folder: str, num_bytes: int, seconds: float) -> None:
        amount = f"{human_bytes(num_bytes)} in {human_seconds(seconds)}, under {folder}"
        self._note(codes.OBJECTS_UPLOADED(str(self._url), amount, name=name, url=self._url))

    def _tidy(self, writer: StoreWriter) -> None:
        try:
            writer.remove_dropped()
        except CheckpointError as error:
            first = error.diagnostics[0]
            self._note(codes.OBJECTS_HOUSEKEEPING(first.where, first.found, detail=first.what))

    def _note(self, diagnostic: Diagnostic) -> None:
        self._notes.put(diagnostic)

    def _together(self, work: Callable[[], object]) -> list:
        return on_all_ranks(self._ranks, work, Path(str(self._url)), "the checkpoint could not be uploaded")


def _left_behind(path: Path, url: ObjectUrl, seconds: float) -> Diagnostic:
    return codes.OBJECTS_NOT_IN_TIME(
        f"{path.name} is on the disk, but was not uploaded to {url} within {seconds:g} s of the stop",
        str(path),
        "",
        "a resume on this disk uploads it, or paceline checkpoints upload RUN URL;"
        " training.upload_timeout sets how long a stopped run waits",
        Severity.WARNING,
    )
