"""File permissions of a run: readable by the owner only, unless the folder or the config shares them."""

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
    """Set the umask for files that this process and its children write below ``folder`` inside the block.

    - ``private``: owner only, or owner and group if the nearest existing folder has the setgid bit (a shared
      team folder)
    - ``group``: owner and group
    - ``umask``: unchanged

    Never widens the umask of the process.
    """
    before = os.umask(0o077)
    # The setgid bit marks a team's shared folder
    os.umask(
        before
        | _MASKS[
            GROUP if access == PRIVATE and _nearest_folder(folder).stat().st_mode & stat.S_ISGID else access
        ]
    )
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def written_into(folder: Path) -> Iterator[None]:
    """Set the umask so that files written inside the block are at most as accessible as ``folder``."""
    mode = stat.S_IMODE(folder.stat().st_mode) if folder.is_dir() else 0o700
    before = os.umask(0o077)
    os.umask(before | ~mode & 0o077)
    try:
        yield
    finally:
        os.umask(before)


def open_to_strangers(folder: Path) -> str:
    """Return why another user could replace files in ``folder`` or its nearest existing parent, if so."""
    nearest = _nearest_folder(folder)
    info = nearest.stat()
    if info.st_uid not in (os.geteuid(), 0):
        return f"{nearest} belongs to another user (uid {info.st_uid})" if nearest == folder else ""
    if info.st_mode & stat.S_IWOTH and not info.st_mode & stat.S_ISVTX:
        return f"{nearest} is writable by every user"
    return ""


def _nearest_folder(path: Path) -> Path:
    return next((folder for folder in (path, *path.parents) if folder.is_dir()), Path("/"))
