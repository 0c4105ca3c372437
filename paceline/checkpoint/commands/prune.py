"""``paceline checkpoints prune``: keep the last N, the best and every k-th step; never lose a sound one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.checkpoint import codes
from paceline.checkpoint.format.folder_layout import BEST, Found, read_hint, scan
from paceline.checkpoint.format.verify_files import verify
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
class Thinned:
    """Names of what was removed (or would be) and kept, and why each one was kept."""

    removed: tuple[str, ...]
    num_bytes: int
    kept: dict[str, str]

    def to_json(self) -> JsonObject:
        return {"removed": list(self.removed), "bytes": self.num_bytes, "kept": dict(self.kept)}


def thin(
    folder: Path, keep: RetentionRule, *, dry: bool, verifies: Callable[[Found], bool] | None = None
) -> Thinned:
    """Remove the complete checkpoints of a ``checkpoints`` folder that ``keep`` does not name.

    One of the kept ones is verified first, every byte of it; where none verifies, the newest that does is
    kept too, and where no checkpoint does, nothing is removed (CheckpointError ``checkpoint.none_sound``).
    """
    verifies = verifies or _verifies
    complete = [found for found in scan(folder) if found.problem is None]
    kept = keep.reasons([found.name for found in complete], read_hint(folder / BEST), last_verified(folder))
    for found in complete:
        if found.path.is_symlink():
            kept.setdefault(found.name, "a link, whose target is not part of the run")
        elif found.name not in kept and is_being_read(found.path):
            kept[found.name] = "it is being read"
    if len(kept) < len(complete):
        _keep_a_sound_one(complete, kept, verifies, folder)
    gone = [found for found in complete if found.name not in kept]
    for found in () if dry else gone:
        remove(found)
    size = sum(found.manifest.total_bytes for found in gone if found.manifest is not None)
    return Thinned(tuple(found.name for found in gone), size, kept)


def _keep_a_sound_one(
    complete: Sequence[Found], kept: dict[str, str], verifies: Callable[[Found], bool], folder: Path
) -> None:
    """Add the newest sound checkpoint to ``kept`` unless a kept one is sound."""
    newest_first = list(reversed(complete))
    for found in (
        *(f for f in newest_first if f.name in kept),
        *(f for f in newest_first if f.name not in kept),
    ):
        if verifies(found):
            if found.name not in kept:
                kept[found.name] = "the only one that verifies: those to be kept are damaged"
            mark_verified(found.path)
            return
    raise CheckpointError(
        codes.CHECKPOINT_NONE_SOUND(str(folder), ", ".join(found.name for found in newest_first[:5]))
    )


def _verifies(found: Found) -> bool:
    assert found.manifest is not None
    try:
        verify(found.path, found.manifest)
    except CheckpointError:
        return False
    return True
