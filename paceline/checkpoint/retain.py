"""Remove old checkpoints: each is renamed first, so that a reader never sees a partial one. No torch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path

from paceline.checkpoint.disk import CrashPoint, never
from paceline.checkpoint.layout import scan, trash_name


def prune(folder: Path, keep: int | None, kept: Collection[str], crash: CrashPoint = never) -> list[str]:
    """Remove complete checkpoints beyond the newest ``keep``, except the names in ``kept``.

    Return removed names.

    Incomplete ones are neither counted nor removed, as evidence; nor are links, since their target belongs to
    someone else. Raises OSError.
    """
    if keep is None:
        return []
    complete = [f for f in scan(folder) if f.problem is None]
    gone = [f for f in complete[:-keep] if f.name not in kept and not f.path.is_symlink()]
    for found in gone:
        trash = folder / trash_name(found.name, os.urandom(6).hex())
        os.rename(found.path, trash)
        crash("pruned_aside")
        shutil.rmtree(trash)
    return [f.name for f in gone]


def discard(path: Path) -> None:
    """Remove a folder that is not a checkpoint (any more).

    What cannot be removed is retried at the next save.
    """
    if path.is_symlink():
        path.unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)
