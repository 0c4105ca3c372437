"""Choose the checkpoints to keep, and remove the others. No torch.

Each is renamed first, so that a reader never sees a partial one. The last fully verified checkpoint has a
separate mark, and stays.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.checkpoint import codes
from paceline.checkpoint.errors import incomplete
from paceline.checkpoint.format.durable_files import CrashPoint, never, replace_text
from paceline.checkpoint.format.manifest import MANIFEST, MAX_MANIFEST_BYTES
from paceline.checkpoint.format.verify_files import (
    VERIFIED,
    CheckpointFolder,
    aside_name,
    is_step_name,
    open_part,
    step_of,
)
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import CheckpointError


@dataclass(frozen=True)
class RetentionRule:
    """The checkpoints to keep: the last ones (None: all), and those whose step is a multiple of ``every``."""

    last: int | None
    every: int | None = None

    def reasons(self, names: Sequence[str], best: str | None, verified: str | None) -> dict[str, str]:
        """Return name → reason for the ``names`` (oldest first) that stay."""
        kept: dict[str, str] = {}
        for name in names[-self.last :] if self.last is not None else names:
            kept[name] = "one of the last" if self.last is not None else "all are kept"
        for name in names:
            if self.every is not None and step_of(name) % self.every == 0:
                kept.setdefault(name, f"a step of every {self.every}")
            if name == best:
                kept.setdefault(name, "the best")
            if name == verified:
                kept.setdefault(name, "the last verified one")
        return kept


def prune(
    complete: Sequence[CheckpointFolder],
    rule: RetentionRule,
    protected: Collection[str],
    folder: Path,
    crash: CrashPoint = never,
) -> list[str]:
    """Remove the ``complete`` checkpoints of a ``folder`` (oldest first) that ``rule`` does not keep, except
    ``protected`` names and the last verified one.

    Return removed names. Links are not removed, since their targets belong to someone else; neither is a
    checkpoint that an export or a resume reads. Raises OSError.
    """
    if rule.last is None:
        return []
    # The best is among ``protected`` already.
    kept = rule.reasons([f.name for f in complete], None, last_verified(folder))
    removed = []
    for checkpoint in complete:
        if checkpoint.name in kept or checkpoint.name in protected or checkpoint.path.is_symlink():
            continue
        with suppress(FileNotFoundError):  # somebody else has removed it
            if not is_being_read(checkpoint.path):
                remove(checkpoint, crash)
                removed.append(checkpoint.name)
    return removed


def remove(checkpoint: CheckpointFolder, crash: CrashPoint = never) -> None:
    """Remove a complete checkpoint. Raises OSError."""
    # A rename is atomic: a kill inside ``rmtree`` leaves a trash folder, never half a checkpoint.
    trash = checkpoint.path.with_name(aside_name("trash", checkpoint.name))
    os.rename(checkpoint.path, trash)
    crash("pruned_aside")
    shutil.rmtree(trash)


def discard(path: Path) -> None:
    """Remove a folder that is not a checkpoint (any more).

    Failed removals are retried at the next save.
    """
    if path.is_symlink():
        path.unlink(missing_ok=True)
    # What stays has a leftover's name, which the next save looks for.
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def being_read(checkpoint: Path) -> Iterator[None]:
    """Keep ``checkpoint`` from being pruned by another process of this machine (or of a shared file system
    with locks) while it is read. A reader opens files only when it needs them.

    Raises CheckpointError ``checkpoint.incomplete`` if there is no manifest (any more).
    """
    try:
        fd = os.open(checkpoint / MANIFEST, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise incomplete(checkpoint, f"{MANIFEST} is missing") from None
    try:
        # The lock goes with the descriptor, also when the process is killed.
        _lock(fd, fcntl.LOCK_SH)
        yield
    finally:
        os.close(fd)


def is_being_read(checkpoint: Path) -> bool:
    """Whether another process holds ``being_read``."""
    fd = os.open(checkpoint / MANIFEST, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # An exclusive lock fails while anybody holds a shared one.
        return not _lock(fd, fcntl.LOCK_EX)
    finally:
        os.close(fd)


def _lock(fd: int, kind: int) -> bool:
    """Lock without waiting; True if it is ours, or if the file system has no locks."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as exc:
        # NFS without a lock daemon: then nobody can tell, and nothing is held back.
        return exc.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF)
    return True


@contextmanager
def noting_errors(notes: list[Diagnostic], where: Path) -> Iterator[None]:
    """Turn an OSError raised inside into a note: the checkpoint is published, only housekeeping failed."""
    try:
        yield
    except OSError as exc:
        problem = "the checkpoint is published, but a later operation failed"
        notes.append(housekeeping_failed(problem, where, exc))


def housekeeping_failed(problem: str, where: Path, error: OSError) -> Diagnostic:
    """Return the warning about work after a save that failed; the checkpoint itself is sound."""
    return codes.CHECKPOINT_HOUSEKEEPING(problem, str(where), str(error), severity=Severity.WARNING)


_MOST = 128


def mark_verified(checkpoint: Path) -> None:
    """Record that all of ``checkpoint`` has been verified, if it is in a run's folder. Raises OSError."""
    if not is_step_name(checkpoint.name) or checkpoint.parent.name != "checkpoints":
        return
    if (mark := _mark_of(checkpoint)) is not None:
        replace_text(checkpoint.parent / VERIFIED, mark)


def last_verified(checkpoints: Path) -> str | None:
    """Return the name of the last verified checkpoint of the folder; None if it was saved again since."""
    try:
        with open_part(checkpoints, VERIFIED) as file:
            text = file.read(_MOST).decode("ascii", "replace")
    except CheckpointError:
        return None
    name = text.partition(" ")[0]
    # The mark holds the manifest's hash: a step that was saved again is another checkpoint.
    return name if is_step_name(name) and _mark_of(checkpoints / name) == text else None


def manifest_digest(checkpoint: Path) -> str | None:
    """Return the sha256 of a checkpoint's manifest, or None if it cannot be read."""
    try:
        with open_part(checkpoint, MANIFEST) as file:
            return hashlib.sha256(file.read(MAX_MANIFEST_BYTES)).hexdigest()
    except CheckpointError:
        return None


def _mark_of(checkpoint: Path) -> str | None:
    """Return the name and the manifest's sha256, or None if it cannot be read."""
    digest = manifest_digest(checkpoint)
    return None if digest is None else f"{checkpoint.name} {digest}\n"
