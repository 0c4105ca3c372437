"""A checkpoint from its URL onto this machine's disk: staged, compared, renamed into view."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock

from paceline.checkpoint import codes
from paceline.checkpoint.errors import incomplete, skipped
from paceline.checkpoint.format.durable_files import (
    make_folder,
    named_errors,
    need_space,
    never,
    replace_text,
)
from paceline.checkpoint.format.folder_layout import LATEST, CheckpointFolder, aside_name, leftovers, scan
from paceline.checkpoint.format.manifest import Manifest
from paceline.checkpoint.format.verify_files import check_name, verify
from paceline.checkpoint.load.find_checkpoint import BEFORE_BYTES, only_missing_files, problem_of
from paceline.checkpoint.object_store.commits import StoredCheckpoint, read_head
from paceline.checkpoint.object_store.interface import ObjectStore
from paceline.checkpoint.object_store.transfer import download, read_stored_manifest
from paceline.checkpoint.save.retention import discard
from paceline.checkpoint.save.staging import Stage
from paceline.config.registries.object_store_url import ObjectUrl
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError
from paceline.core.units import human_bytes, human_seconds
from paceline.rules import codes as rules_codes

_LOCK = ".fetch.lock"


@dataclass(frozen=True)
class DownloadedCheckpoint:
    """A checkpoint that was brought down, and notes about it."""

    path: Path
    notes: tuple[Diagnostic, ...]


def download_newest(
    store: ObjectStore, url: ObjectUrl, folder: Path, *, several: bool = False
) -> DownloadedCheckpoint | None:
    """Bring the newest checkpoint of ``url`` into a run's ``checkpoints`` folder, unless one as new is there
    and sound.

    Of processes that share the disk one does it and the others find it. A damaged one, here or there, is
    passed over, with a note. With ``several`` disks what is not here may be on others, and the ranks look
    over all of them later: what is here counts if it is sound. Raises CheckpointError, on one disk also if
    none is sound.
    """
    make_folder(folder)
    with named_errors(folder), FileLock(str(folder / _LOCK)):
        _, head = read_head(store, str(url))
        stored = head.checkpoints if head is not None else ()
        if not stored:
            return None
        on_disk = find_local(folder, elsewhere=several)
        here = on_disk.sequence
        # By sequence, not by step: a resumed run may save an old step anew.
        if here >= stored[-1].sequence:
            return None
        notes: list[Diagnostic] = []
        for checkpoint in reversed(stored):
            if checkpoint.sequence <= here:
                break
            try:
                brought = _download(store, url, checkpoint, folder)
            except CheckpointError as problem:
                if problem.diagnostics[0].code not in _DAMAGE:
                    raise
                notes.append(_passed_over(checkpoint, url, problem))
                continue
            replace_text(folder / LATEST, brought.path.name + "\n")
            notes += on_disk.replaced(checkpoint.name, str(url))
            return DownloadedCheckpoint(brought.path, (*notes, *brought.notes))
    if here >= 0 or several:
        return DownloadedCheckpoint(folder, tuple(notes)) if notes else None
    raise CheckpointError(
        rules_codes.RESUME_ONLY_INCOMPLETE(
            "the URL names checkpoints, but none of them is sound", str(url), notes[0].found
        )
    )


def download_named(store: ObjectStore, url: ObjectUrl, folder: Path) -> DownloadedCheckpoint:
    """Bring the checkpoint that ``url`` names (without a step: the newest) into ``folder``, if it is not
    there. Raises CheckpointError.
    """
    make_folder(folder)
    with named_errors(folder), FileLock(str(folder / _LOCK)):
        checkpoint = stored_checkpoint(store, url)
        there = [local for local in scan(folder) if local.name == checkpoint.name and is_sound(local)]
        if there and there[0].manifest is not None and there[0].manifest.sequence == checkpoint.sequence:
            return DownloadedCheckpoint(there[0].path, ())
        return _download(store, url, checkpoint, folder)


def stored_checkpoint(store: ObjectStore, url: ObjectUrl) -> StoredCheckpoint:
    """Return the checkpoint that ``url`` names; without a step the newest. Raises CheckpointError."""
    _, head = read_head(store, str(url))
    stored = head.checkpoints if head is not None else ()
    matches = [checkpoint for checkpoint in stored if url.step in (None, checkpoint.name)]
    if not matches:
        names = ", ".join(checkpoint.name for checkpoint in stored[-3:])
        raise CheckpointError(
            codes.RESUME_NOT_A_CHECKPOINT(
                "there is no such checkpoint at this URL",
                str(url),
                (url.step or "no checkpoint") + (f"; available: {names}" if names else ""),
                "name one that is there, or the URL without a step for the newest",
            )
        )
    return matches[-1]


def _download(
    store: ObjectStore, url: ObjectUrl, checkpoint: StoredCheckpoint, folder: Path
) -> DownloadedCheckpoint:
    began = time.perf_counter()
    manifest, content = manifest_of(store, checkpoint)
    check_name(folder / checkpoint.name, manifest)
    for left in leftovers(folder):
        discard(left)
    need_space(folder, manifest.total_bytes)
    nonce = os.urandom(6).hex()
    staging = folder / aside_name("staging", checkpoint.name, nonce)
    stage = Stage(checkpoint.step, nonce, checkpoint.sequence, staging, folder / checkpoint.name)
    os.mkdir(stage.folder)
    try:
        download(store, checkpoint.folder, manifest, content, stage.folder)
        stage.rename(never)
    except Exception:
        discard(stage.folder)
        raise
    took = f"{human_bytes(manifest.total_bytes)} in {human_seconds(time.perf_counter() - began)}"
    note = codes.OBJECTS_FETCHED(
        str(stage.final), f"{took}, every block by its hash", name=checkpoint.name, url=url
    )
    return DownloadedCheckpoint(stage.final, (note,))


def manifest_of(store: ObjectStore, checkpoint: StoredCheckpoint) -> tuple[Manifest, bytes]:
    """Return the manifest of a committed checkpoint, and its bytes. Raises CheckpointError."""
    manifest, content = read_stored_manifest(store, checkpoint.folder)
    if (manifest.step, manifest.sequence) != (checkpoint.step, checkpoint.sequence):
        raise incomplete(Path(checkpoint.folder), f"its manifest is of step {manifest.step}")
    return manifest, content


_DAMAGE = frozenset(
    {
        codes.OBJECTS_DAMAGED.name,
        codes.CHECKPOINT_DAMAGED.name,
        codes.CHECKPOINT_INCOMPLETE.name,
        codes.CHECKPOINT_MANIFEST.name,
        codes.CHECKPOINT_JSON.name,
    }
)


def _passed_over(checkpoint: StoredCheckpoint, url: ObjectUrl, problem: CheckpointError) -> Diagnostic:
    first = problem.diagnostics[0]
    return skipped(
        f"{checkpoint.name} of the URL",
        first.what,
        f"{url}/{checkpoint.folder}",
        "an earlier one is taken",
        first,
    )


@dataclass(frozen=True)
class LocalCheckpoints:
    """``sequence``: of the newest sound checkpoint, -1 if there is none; ``damaged``: newer ones that are
    not, newest first.
    """

    sequence: int
    damaged: Sequence[tuple[CheckpointFolder, CheckpointError]] = ()

    def replaced(self, name: str, where: str) -> list[Diagnostic]:
        """Return the warning that a damaged checkpoint of this disk gives way to that of a URL."""
        return [
            skipped(
                f"{name} of this disk",
                problem.diagnostics[0].what,
                str(checkpoint.path),
                f"the one of {where} is taken in its place",
                problem.diagnostics[0],
            )
            for checkpoint, problem in self.damaged
            if checkpoint.name == name
        ]


def find_local(folder: Path, *, elsewhere: bool) -> LocalCheckpoints:
    """Look at this disk's checkpoints, the newest first, until one is sound: all files with their sizes, and
    up to ``BEFORE_BYTES`` every hash; the ranks hash larger ones as they read them.

    ``elsewhere``: files that are not here may be on other nodes' disks. Raises the error of one that a newer
    Paceline wrote.
    """
    damaged: list[tuple[CheckpointFolder, CheckpointError]] = []
    for checkpoint in reversed(scan(folder)):
        problem = _problem(checkpoint, elsewhere)
        if problem is None:
            return LocalCheckpoints(checkpoint.age_key[0], damaged)
        if problem.diagnostics[0].code == codes.CHECKPOINT_NEWER.name:
            raise problem
        damaged.append((checkpoint, problem))
    return LocalCheckpoints(-1, damaged)


def is_sound(checkpoint: CheckpointFolder) -> bool:
    """Whether a checkpoint is sound, as far as that is looked at before a start."""
    return _problem(checkpoint, elsewhere=False) is None


def _problem(checkpoint: CheckpointFolder, elsewhere: bool) -> CheckpointError | None:
    if checkpoint.problem is None:
        return problem_of(checkpoint, BEFORE_BYTES)
    manifest = checkpoint.manifest
    if manifest is None or not elsewhere or not only_missing_files(checkpoint.problem.diagnostics):
        return checkpoint.problem
    files = {name: entry for name, entry in manifest.files.items() if (checkpoint.path / name).is_file()}
    if not files:
        return checkpoint.problem
    try:
        verify(checkpoint.path, replace(manifest, files=files), tensors=manifest.total_bytes <= BEFORE_BYTES)
    except CheckpointError as problem:
        return problem
    return None
