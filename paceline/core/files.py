"""Opening a file that somebody else named: it is a file, or it is refused; nothing that waits for a writer or has no end."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path
from typing import BinaryIO, TextIO

_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def no_file(path: Path) -> str | None:
    """What stands at ``path`` in place of a file (``a FIFO``, …), links followed; None for a file, a folder, or nothing. Raises no OSError."""
    try:
        return _KINDS.get(stat.S_IFMT(path.stat().st_mode))
    except OSError:
        return None


def open_file(path: Path) -> BinaryIO:
    """The bytes of a file. Raises OSError; for a FIFO, a socket or a device too, whose opening or reading would never come to an end."""
    refuse_special(path)
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # non-blocking: it may have been replaced since
    try:
        mode = os.fstat(number).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a file", str(path))
        return os.fdopen(number, "rb")
    except BaseException:
        os.close(number)
        raise


def open_text(path: Path) -> TextIO:
    """``open_file`` as UTF-8, with or without a mark at its start; lines end as they stand."""
    return io.TextIOWrapper(open_file(path), encoding="utf-8-sig", newline="")


def read_text(path: Path) -> str:
    """All of a file, as UTF-8. Raises OSError as ``open_file`` does, and ValueError for other bytes."""
    with open_file(path) as file:
        return file.read().decode("utf-8")


def refuse_special(path: Path) -> None:
    """Raises OSError for what is there and neither a file nor a folder."""
    kind = no_file(path)
    if kind is not None:
        raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))


def _is_there(path: Path) -> bool:
    """Whether something stands there, a link to nothing too. Raises OSError where nothing ever can: too long a name."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def not_writable(folder: Path) -> str | None:
    """Why ``folder``, there or still to be made, cannot be written into, in words; None where nothing speaks against it."""
    try:
        there = next((p for p in (folder, *folder.parents) if _is_there(p)), Path("/"))
        if not there.exists():
            return f"{there} is a link to nothing"
        real = there.resolve()
    except (OSError, ValueError, RuntimeError) as error:  # too long a name, links in a circle
        return getattr(error, "strerror", None) or str(error)
    if not there.is_dir():
        return f"{there} is not a folder"
    if real.is_relative_to("/proc") or real.is_relative_to("/sys"):
        return f"{there} is the kernel's own"
    return None if os.access(there, os.W_OK | os.X_OK) else f"{there}: {os.strerror(errno.EACCES)}"


def special_files(folder: Path) -> list[str]:
    """``name: a FIFO`` for everything in ``folder`` that is neither a file nor a folder; empty when it cannot be listed."""
    try:
        inside = sorted(folder.iterdir())
    except OSError:
        return []
    return [f"{path.name}: {kind}" for path in inside if (kind := no_file(path)) is not None]
