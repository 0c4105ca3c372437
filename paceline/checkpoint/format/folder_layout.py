"""Names inside a run's ``checkpoints`` folder, and how to list them. No torch."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.checkpoint.format.manifest import Manifest
from paceline.checkpoint.format.verify_files import check_name, check_sizes, read_manifest
from paceline.core.errors import CheckpointError
from paceline.core.files import listed

LATEST, BEST, VERIFIED = "latest", "best", "verified"  # hints beside the checkpoints: text files with a name
# Eight digits sort as text; up to fifteen are read, for runs of very many steps.
_STEP = re.compile(r"step-(\d{8,15})")
_ASIDE = re.compile(r"\.(replaced|trash|staging)-(step-\d{8,15})-[0-9a-f]+")
_LEFTOVER = re.compile(r"\.(staging|fetching|trash)-step-\d{8,15}-[0-9a-f]+")
_HINT_LEFT = re.compile(r"\.(latest|best|verified)\.[0-9a-f]+")
MAX_HINT_BYTES = 64


@dataclass(frozen=True)
class CheckpointFolder:
    """A folder that is or was meant to be a checkpoint.

    ``problem``: why it cannot be used (sizes are checked, hashes are not).
    """

    path: Path
    name: str
    manifest: Manifest | None
    problem: CheckpointError | None

    @property
    def step(self) -> int:
        return step_of(self.name)

    @property
    def age_key(self) -> tuple[int, int]:
        """Sort key by publication; folders without a manifest come first, by step."""
        return (self.manifest.sequence, self.manifest.step) if self.manifest else (-1, self.step)


def aside_name(use: str, step_name: str, nonce: str | None = None) -> str:
    """Return the name of a folder beside the checkpoints: ``staging`` (a save), ``fetching`` (brought from
    another node), ``replaced`` or ``trash`` (being removed).
    """
    return f".{use}-{step_name}-{nonce or os.urandom(6).hex()}"


def shard_name(rank: int, world_size: int) -> str:
    return f"shard-{rank:05d}-of-{world_size:05d}.safetensors"


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def step_of_folder(folder: str, *uses: str) -> str | None:
    """Return the step's name of a folder that is ``replaced``, ``trash`` (being removed) or ``staging`` (of a
    save that has not been published); None for any other.
    """
    match = _ASIDE.fullmatch(folder)
    return match[2] if match and match[1] in uses else None


def unfinished(folder: Path) -> list[Path]:
    """Return the folders of interrupted saves and removals."""
    return [folder / name for name in _names(folder) if _LEFTOVER.fullmatch(name)]


def is_step_name(name: str) -> bool:
    return _STEP.fullmatch(name) is not None


def step_of(name: str) -> int:
    """Return the step in the name of a checkpoint."""
    return int(name.removeprefix("step-"))


def scan(folder: Path) -> list[CheckpointFolder]:
    """Return every published checkpoint in ``folder``, oldest first, including links to some on another disk.

    If a step was being replaced, the old folder counts while the new one is not complete.
    """
    names = _names(folder)
    links = entries(folder, os.DirEntry.is_symlink)
    checkpoints = [examine_folder(folder / name, name) for name in (*names, *links) if is_step_name(name)]
    complete = {checkpoint.name for checkpoint in checkpoints if checkpoint.problem is None}
    for name in names:
        step = step_of_folder(name, "replaced")
        if step is not None and step not in complete:
            checkpoints.append(examine_folder(folder / name, step))
    return sorted(checkpoints, key=lambda checkpoint: checkpoint.age_key)


def leftovers(folder: Path, checkpoints: Sequence[CheckpointFolder] | None = None) -> list[Path]:
    """Return folders of interrupted saves, and replaced checkpoints whose successor is complete.

    ``checkpoints``: what ``scan`` has returned, where it was called already.
    """
    names = _names(folder)
    kept = {f.path.name for f in (scan(folder) if checkpoints is None else checkpoints)}
    return [
        folder / name
        for name in names
        if _LEFTOVER.fullmatch(name) or (step_of_folder(name, "replaced") and name not in kept)
    ]


def leftover_hints(folder: Path) -> list[Path]:
    """Return temporary hint files that were never renamed."""
    return [path for path in listed(folder, ".*") if _HINT_LEFT.fullmatch(path.name)]


def read_hint(path: Path) -> str | None:
    """Return the step name in ``latest`` or ``best``; None if missing or not a step name."""
    try:
        # O_NONBLOCK: opening a pipe that somebody put there must not hang.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(fd, MAX_HINT_BYTES).decode("ascii", "replace").strip()
    except OSError:
        return None
    finally:
        os.close(fd)
    return text if is_step_name(text) else None


def entries(folder: Path, keep: Callable[[os.DirEntry[str]], bool]) -> list[str]:
    """Return the sorted names of the folder's entries that ``keep`` takes; none if there is no folder."""
    try:
        return sorted(entry.name for entry in os.scandir(folder) if keep(entry))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _names(folder: Path) -> list[str]:
    return entries(folder, lambda entry: entry.is_dir(follow_symlinks=False))


def examine_folder(path: Path, name: str) -> CheckpointFolder:
    manifest: Manifest | None = None
    try:
        manifest = read_manifest(path)
        check_name(path, manifest)
        check_sizes(path, manifest)
    except CheckpointError as problem:
        return CheckpointFolder(path, name, manifest, problem)
    return CheckpointFolder(path, name, manifest, None)
