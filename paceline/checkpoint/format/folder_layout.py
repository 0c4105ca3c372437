"""Names inside a run's ``checkpoints`` folder, and how to list them. No torch."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.checkpoint.format.manifest import Manifest
from paceline.checkpoint.format.verify_files import check_name, check_sizes, read_manifest
from paceline.core.errors import CheckpointError
from paceline.core.files import listed

LATEST, BEST, VERIFIED = "latest", "best", "verified"  # hints beside the checkpoints: text files with a name
_STEP = re.compile(r"step-(\d{8,15})")
_REPLACED = re.compile(r"\.replaced-(step-\d{8,15})-[0-9a-f]+")
_TRASH = re.compile(r"\.trash-(step-\d{8,15})-[0-9a-f]+")
_STAGING = re.compile(r"\.staging-(step-\d{8,15})-[0-9a-f]+")
_LEFTOVER = re.compile(r"\.(staging|fetching|trash)-step-\d{8,15}-[0-9a-f]+")
_HINT_LEFT = re.compile(r"\.(latest|best|verified)\.[0-9a-f]+")
MAX_HINT_BYTES = 64


@dataclass(frozen=True)
class Found:
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


def staging_name(step_name: str, nonce: str) -> str:
    return f".staging-{step_name}-{nonce}"


def fetching_name(step_name: str, nonce: str) -> str:
    """Return the name of a folder into which a checkpoint of another node is brought."""
    return f".fetching-{step_name}-{nonce}"


def trash_name(step_name: str, nonce: str) -> str:
    return f".trash-{step_name}-{nonce}"


def replaced_name(step_name: str, nonce: str) -> str:
    return f".replaced-{step_name}-{nonce}"


def shard_name(rank: int, world_size: int) -> str:
    return f"shard-{rank:05d}-of-{world_size:05d}.safetensors"


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def replaced_step(folder: str) -> str | None:
    """Return the step's name of a folder that was being replaced; None for any other."""
    match = _REPLACED.fullmatch(folder)
    return match[1] if match else None


def trash_step(folder: str) -> str | None:
    """Return the step's name of a folder that was being removed; None for any other."""
    match = _TRASH.fullmatch(folder)
    return match[1] if match else None


def staging_step(folder: str) -> str | None:
    """Return the step's name of a folder of a save that has not been published; None for any other."""
    match = _STAGING.fullmatch(folder)
    return match[1] if match else None


def unfinished(folder: Path) -> list[Path]:
    """Return the folders of interrupted saves and removals."""
    return [folder / name for name in _names(folder) if _LEFTOVER.fullmatch(name)]


def is_step_name(name: str) -> bool:
    return _STEP.fullmatch(name) is not None


def step_of(name: str) -> int:
    """Return the step in the name of a checkpoint."""
    return int(name.removeprefix("step-"))


def scan(folder: Path) -> list[Found]:
    """Return every published checkpoint in ``folder``, oldest first, including links to some on another disk.

    If a step was being replaced, the old folder counts while the new one is not complete.
    """
    names = _names(folder)
    found = [examine_folder(folder / name, name) for name in (*names, *_links(folder)) if is_step_name(name)]
    whole = {f.name for f in found if f.problem is None}
    for name in names:
        match = _REPLACED.fullmatch(name)
        if match and match[1] not in whole:
            found.append(examine_folder(folder / name, match[1]))
    return sorted(found, key=lambda f: f.age_key)


def leftovers(folder: Path, found: Sequence[Found] | None = None) -> list[Path]:
    """Return folders of interrupted saves, and replaced checkpoints whose successor is complete.

    ``found``: what ``scan`` has returned, where it was called already.
    """
    names = _names(folder)
    kept = {f.path.name for f in (scan(folder) if found is None else found)}
    return [
        folder / name
        for name in names
        if _LEFTOVER.fullmatch(name) or (_REPLACED.fullmatch(name) and name not in kept)
    ]


def leftover_hints(folder: Path) -> list[Path]:
    """Return temporary hint files that were never renamed."""
    return [path for path in listed(folder, ".*") if _HINT_LEFT.fullmatch(path.name)]


def read_hint(path: Path) -> str | None:
    """Return the step name in ``latest`` or ``best``; None if missing or not a step name."""
    try:
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


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _links(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_symlink())
    except (FileNotFoundError, NotADirectoryError):
        return []


def examine_folder(path: Path, name: str) -> Found:
    manifest: Manifest | None = None
    try:
        manifest = read_manifest(path)
        check_name(path, manifest)
        check_sizes(path, manifest)
    except CheckpointError as problem:
        return Found(path, name, manifest, problem)
    return Found(path, name, manifest, None)
