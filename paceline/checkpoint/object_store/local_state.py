"""What this disk has, before a URL is asked for a checkpoint: the newest that is sound, and what is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.checkpoint import codes
from paceline.checkpoint.errors import skipped
from paceline.checkpoint.format.folder_layout import Found, scan
from paceline.checkpoint.format.verify_files import verify
from paceline.checkpoint.load.find_checkpoint import BEFORE_BYTES, lies_elsewhere, problem_of
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError


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
