"""The writer of a URL, on rank 0: folders for uploads, commits, and the removal of what no commit names."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence

from paceline.checkpoint import codes
from paceline.checkpoint.format.manifest import MANIFEST, MAX_MANIFEST_BYTES, Manifest
from paceline.checkpoint.object_store.commits import (
    DATA,
    Commit,
    StoredCheckpoint,
    read_commit,
    read_head,
)
from paceline.checkpoint.object_store.interface import ObjectStore, create_own
from paceline.checkpoint.object_store.lease import Claim, Lease, take_claim
from paceline.checkpoint.save.retention import RetentionRule
from paceline.config.registries.object_store_url import ObjectUrl
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError

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
        self._failed[folder] = (*files, MANIFEST)
        return folder

    def commit(
        self, manifest: Manifest, name: str, folder: str, sizes: Mapping[str, int], best: str | None
    ) -> None:
        """Make a checkpoint whose files are in ``folder`` exist, if all are there. Raises CheckpointError."""
        assert self._claim is not None
        wanted = {file: entry.bytes for file, entry in manifest.files.items()}
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

        The newest record is read for this: what it names stays, whatever this writer believes.
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
        """Return the record after the last one, with what retention keeps; the new one always stays."""
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
        """Forget that the folders of committed checkpoints were to be removed: a commit that seemed to have
        failed may have acted.
        """
        folders = {checkpoint.folder for checkpoint in checkpoints}
        self._failed = {folder: files for folder, files in self._failed.items() if folder not in folders}
        self._dropped = tuple(checkpoint for checkpoint in self._dropped if checkpoint not in folders)

    def _learn(self, number: int) -> None:
        """Take over record ``number``, which exists: an earlier try of ours that seemed to have failed, or a
        torn one. Raises CheckpointError ``objects.other_writer``.
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
        """Return folders that runs before this one began and never committed, as far as a listing shows."""
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
