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
from paceline.checkpoint.format.folder_layout import LATEST, Found, leftovers, scan, staging_name
from paceline.checkpoint.format.manifest import Manifest
from paceline.checkpoint.format.verify_files import check_name, verify
from paceline.checkpoint.load.find_checkpoint import BEFORE_BYTES, lies_elsewhere, problem_of
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
class Brought:
    """A checkpoint that was brought down, and notes about it."""

    path: Path
    notes: tuple[Diagnostic, ...]


def bring_newest(
    store: ObjectStore, url: ObjectUrl, folder: Path, *, several: bool = False
) -> Brought | None:
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
        on_disk = look_here(folder, elsewhere=several)
        here = on_disk.sequence
        if here >= stored[-1].sequence:
            return None
        notes: list[Diagnostic] = []
        for one in reversed(stored):
            if one.sequence <= here:
                break
            try:
                brought = _bring(store, url, one, folder)
            except CheckpointError as problem:
                if problem.diagnostics[0].code not in _DAMAGE:
                    raise
                notes.append(_passed_over(one, url, problem))
                continue
            replace_text(folder / LATEST, brought.path.name + "\n")
            notes += on_disk.replaced(one.name, str(url))
            return Brought(brought.path, (*notes, *brought.notes))
    if here >= 0 or several:
        return Brought(folder, tuple(notes)) if notes else None
    raise CheckpointError(
        rules_codes.RESUME_ONLY_INCOMPLETE(
            "the URL names checkpoints, but none of them is sound", str(url), notes[0].found
        )
    )


def bring_named(store: ObjectStore, url: ObjectUrl, folder: Path) -> Brought:
    """Bring the checkpoint that ``url`` names (without a step: the newest) into ``folder``, if it is not
    there. Raises CheckpointError.
    """
    make_folder(folder)
    with named_errors(folder), FileLock(str(folder / _LOCK)):
        one = named_by(store, url)
        there = [found for found in scan(folder) if found.name == one.name and is_sound(found)]
        if there and there[0].manifest is not None and there[0].manifest.sequence == one.sequence:
            return Brought(there[0].path, ())
        return _bring(store, url, one, folder)


def named_by(store: ObjectStore, url: ObjectUrl) -> StoredCheckpoint:
    """Return the checkpoint that ``url`` names; without a step the newest. Raises CheckpointError."""
    _, head = read_head(store, str(url))
    stored = head.checkpoints if head is not None else ()
    found = [one for one in stored if url.step in (None, one.name)]
    if not found:
        names = ", ".join(one.name for one in stored[-3:])
        raise CheckpointError(
            codes.RESUME_NOT_A_CHECKPOINT(
                "there is no such checkpoint at this URL",
                str(url),
                (url.step or "no checkpoint") + (f"; available: {names}" if names else ""),
                "name one that is there, or the URL without a step for the newest",
            )
        )
    return found[-1]


def _bring(store: ObjectStore, url: ObjectUrl, one: StoredCheckpoint, folder: Path) -> Brought:
    began = time.perf_counter()
    manifest, content = manifest_of(store, one)
    check_name(folder / one.name, manifest)
    for left in leftovers(folder):
        discard(left)
    need_space(folder, manifest.total_bytes)
    nonce = os.urandom(6).hex()
    stage = Stage(one.step, nonce, one.sequence, folder / staging_name(one.name, nonce), folder / one.name)
    os.mkdir(stage.folder)
    try:
        download(store, one.folder, manifest, content, stage.folder)
        stage.rename(never)
    except Exception:
        discard(stage.folder)
        raise
    took = f"{human_bytes(manifest.total_bytes)} in {human_seconds(time.perf_counter() - began)}"
    note = codes.OBJECTS_FETCHED(str(stage.final), f"{took}, every block by its hash", name=one.name, url=url)
    return Brought(stage.final, (note,))


def manifest_of(store: ObjectStore, one: StoredCheckpoint) -> tuple[Manifest, bytes]:
    """Return the manifest of a committed checkpoint, and its bytes. Raises CheckpointError."""
    manifest, content = read_stored_manifest(store, one.folder)
    if (manifest.step, manifest.sequence) != (one.step, one.sequence):
        raise incomplete(Path(one.folder), f"its manifest is of step {manifest.step}")
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


def _passed_over(one: StoredCheckpoint, url: ObjectUrl, problem: CheckpointError) -> Diagnostic:
    first = problem.diagnostics[0]
    return skipped(
        f"{one.name} of the URL", first.what, f"{url}/{one.folder}", "an earlier one is taken", first
    )


@dataclass(frozen=True)
class Here:
    """``sequence``: of the newest sound checkpoint, -1 if there is none; ``damaged``: newer ones that are
    not, newest first.
    """

    sequence: int
    damaged: Sequence[tuple[Found, CheckpointError]] = ()

    def replaced(self, name: str, where: str) -> list[Diagnostic]:
        """Return the warning that a damaged checkpoint of this disk gives way to that of a URL."""
        return [
            skipped(
                f"{name} of this disk",
                problem.diagnostics[0].what,
                str(found.path),
                f"the one of {where} is taken in its place",
                problem.diagnostics[0],
            )
            for found, problem in self.damaged
            if found.name == name
        ]


def look_here(folder: Path, *, elsewhere: bool) -> Here:
    """Look at this disk's checkpoints, the newest first, until one is sound: all files with their sizes, and
    up to ``BEFORE_BYTES`` every hash; the ranks hash larger ones as they read them.

    ``elsewhere``: files that are not here may be on other nodes' disks. Raises the error of one that a newer
    Paceline wrote.
    """
    damaged: list[tuple[Found, CheckpointError]] = []
    for found in reversed(scan(folder)):
        problem = _problem(found, elsewhere)
        if problem is None:
            return Here(found.age_key[0], damaged)
        if problem.diagnostics[0].code == codes.CHECKPOINT_NEWER.name:
            raise problem
        damaged.append((found, problem))
    return Here(-1, damaged)


def is_sound(found: Found) -> bool:
    """Whether a checkpoint is sound, as far as that is looked at before a start."""
    return _problem(found, elsewhere=False) is None


def _problem(found: Found, elsewhere: bool) -> CheckpointError | None:
    if found.problem is None:
        return problem_of(found, BEFORE_BYTES)
    manifest = found.manifest
    if manifest is None or not elsewhere or not lies_elsewhere(found.problem.diagnostics):
        return found.problem
    files = {name: entry for name, entry in manifest.files.items() if (found.path / name).is_file()}
    if not files:
        return found.problem
    try:
        verify(found.path, replace(manifest, files=files), tensors=manifest.total_bytes <= BEFORE_BYTES)
    except CheckpointError as problem:
        return problem
    return None
