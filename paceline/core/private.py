"""What is learnt from is the user's own: folders and files that a run writes are open to nobody else, unless a team's folder or the config says so."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PRIVATE, GROUP, UMASK = "private", "group", "umask"
_MASKS = {PRIVATE: 0o077, GROUP: 0o007, UMASK: 0}


@contextmanager
def written_for(folder: Path, access: str = PRIVATE) -> Iterator[None]:
    """What this process and its children write meanwhile below ``folder`` is for the user alone (``private``; for the group too where the nearest
    folder that exists bears the setgid bit, as a team's does), for the group (``group``), or as the umask says (``umask``). Never for more than that."""
    before = os.umask(0o077)
    os.umask(before | _MASKS[GROUP if access == PRIVATE and _is_of_a_team(folder) else access])
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def written_into(folder: Path) -> Iterator[None]:
    """What is written meanwhile is at most as open as ``folder``, where it goes."""
    mode = stat.S_IMODE(folder.stat().st_mode) if folder.is_dir() else 0o700
    before = os.umask(0o077)
    os.umask(before | ~mode & 0o077)
    try:
        yield
    finally:
        os.umask(before)


def open_to_strangers(folder: Path) -> str:
    """Why somebody else could replace what is written into ``folder`` (or into the nearest of its parents that is there); empty when nobody can."""
    place = next((path for path in (folder, *folder.parents) if path.is_dir()), Path("/"))
    info = place.stat()
    if info.st_uid not in (os.geteuid(), 0):
        return f"{place} belongs to another user (uid {info.st_uid})" if place == folder else ""
    if info.st_mode & stat.S_IWOTH and not info.st_mode & stat.S_ISVTX:
        return f"everybody may write in {place}"
    return ""


def _is_of_a_team(folder: Path) -> bool:
    nearest = next((path for path in (folder, *folder.parents) if path.is_dir()), Path("/"))
    return bool(nearest.stat().st_mode & stat.S_ISGID)
