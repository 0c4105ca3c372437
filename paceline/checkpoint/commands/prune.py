"""``paceline checkpoints prune``: keep the last N, the best and every k-th step; never lose a sound one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.checkpoint import codes
from paceline.checkpoint.format.verify_files import BEST, CheckpointFolder, read_hint, scan, verify
from paceline.checkpoint.save.retention import (
    RetentionRule,
    is_being_read,
    last_verified,
    mark_verified,
    remove,
)
from paceline.core.errors import CheckpointError
from paceline.core.json_types import JsonObject


@dataclass(frozen=True)
class PruneReport:
    """Names of removed (or removable) and kept checkpoints, with the reason for each kept one."""

    removed: tuple[str, ...]
    num_bytes: int
    kept: dict[str, str]

    def to_json(self) -> JsonObject:
        return {"removed": list(self.removed), "bytes": self.num_bytes, "kept": dict(self.kept)}


def prune_run(
    folder: Path,
    keep: RetentionRule,
    *,
    dry: bool,
    verifies: Callable[[CheckpointFolder], bool] | None = None,
) -> PruneReport:
    """Remove the complete checkpoints of a ``checkpoints`` folder that ``keep`` does not name.

    Before it removes anything, it reads every byte of one kept checkpoint. If no kept checkpoint is sound,
    the newest sound one is kept too. If no checkpoint of the run is sound, nothing is removed
    (CheckpointError ``checkpoint.none_sound``).
    """
    verifies = verifies or _verifies
    complete = [checkpoint for checkpoint in scan(folder) if checkpoint.problem is None]
    kept = keep.reasons(
        [checkpoint.name for checkpoint in complete], read_hint(folder / BEST), last_verified(folder)
    )
    for checkpoint in complete:
        if checkpoint.path.is_symlink():
            kept.setdefault(checkpoint.name, "a link, whose target is not part of the run")
        elif checkpoint.name not in kept and is_being_read(checkpoint.path):
            kept[checkpoint.name] = "it is being read"
    if len(kept) < len(complete):
        _keep_a_sound_one(complete, kept, verifies, folder)
    gone = [checkpoint for checkpoint in complete if checkpoint.name not in kept]
    for checkpoint in () if dry else gone:
        remove(checkpoint)
    size = sum(checkpoint.manifest.total_bytes for checkpoint in gone if checkpoint.manifest is not None)
    return PruneReport(tuple(checkpoint.name for checkpoint in gone), size, kept)


def _keep_a_sound_one(
    complete: Sequence[CheckpointFolder],
    kept: dict[str, str],
    verifies: Callable[[CheckpointFolder], bool],
    folder: Path,
) -> None:
    """Add the newest sound checkpoint to ``kept`` unless a kept one is sound."""
    newest_first = list(reversed(complete))
    for checkpoint in (
        *(f for f in newest_first if f.name in kept),
        *(f for f in newest_first if f.name not in kept),
    ):
        if verifies(checkpoint):
            if checkpoint.name not in kept:
                kept[checkpoint.name] = "the only one that verifies: those to be kept are damaged"
            mark_verified(checkpoint.path)
            return
    raise CheckpointError(
        codes.CHECKPOINT_NONE_SOUND(
            str(folder), ", ".join(checkpoint.name for checkpoint in newest_first[:5])
        )
    )


def _verifies(checkpoint: CheckpointFolder) -> bool:
    assert checkpoint.manifest is not None
    try:
        verify(checkpoint.path, checkpoint.manifest)
    except CheckpointError:
        return False
    return True
