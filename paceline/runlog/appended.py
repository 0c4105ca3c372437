"""An append-only file: each line is written to the kernel at once.

Write errors are counted and reported, not raised.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

OnRefusal = Callable[[Path, OSError], None]


class Appended:
    """Append whole lines; a failed write leaves no partial line. Not thread-safe: callers hold a lock.

    ``on_refusal(path, error)`` is called for every line that was refused (FileNotFoundError: the file was
    deleted; it is created again if its folder's parent still exists). A file that was renamed (logrotate) is
    followed by a new one under the old name. ``lost``: lines lost so far. Raises OSError if it cannot be
    opened.
    """

    def __init__(self, path: Path, on_refusal: OnRefusal | None = None) -> None:
        self.path = path
        self.lost = 0
        self._on_refusal = on_refusal
        path.parent.mkdir(parents=True, exist_ok=True)
        self._folder = _identity(path.parent)
        self._fd: int | None = self._open()
        self._torn = _ends_torn(self._fd)

    @property
    def is_open(self) -> bool:
        return self._fd is not None

    def append(self, line: bytes, *, counts: bool = True) -> bool:
        """Write ``line``, which ends in a newline, visible to readers on return; return False if it was lost.

        ``counts`` False: a loss is not counted in ``lost``.
        """
        if self._fd is None:
            return False
        try:
            there = os.fstat(self._fd)
            if there.st_nlink == 0:
                self._begin_again()
            elif self._is_renamed():
                self._reopen()
            self._write(b"\n" + line if self._torn else line)  # end an incomplete line first
        except OSError as error:
            self.lost += counts
            self._refused(error)
            return False
        return True

    def close(self, *, durable: bool = False) -> None:
        """Close the file, with ``durable`` after an fsync. Safe to call twice."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        try:
            if durable:
                os.fsync(fd)
        except OSError as error:  # reported, not raised: it must not hide the error that ended the run
            self._refused(error)
        finally:
            os.close(fd)

    def _write(self, block: bytes) -> None:
        assert self._fd is not None
        before, view, total = os.fstat(self._fd).st_size, memoryview(block), 0
        try:
            while total < len(block):
                total += os.write(self._fd, view[total:])
        except OSError:
            if total:
                os.ftruncate(self._fd, before)  # leave no partial line for readers
            raise
        self._torn = False

    def _begin_again(self) -> None:
        """Continue in a new file after the old one was deleted, unless the run's folder is gone too.

        The old content is lost.
        """
        self._refused(FileNotFoundError(2, "deleted while it was being written", str(self.path)))
        if not self.path.parent.parent.is_dir():
            return
        self.path.parent.mkdir(exist_ok=True)
        self._folder = _identity(self.path.parent)
        self._reopen()

    def _is_renamed(self) -> bool:
        """Whether the path no longer leads to the open file, though its folder is where it was.

        ``training.reporting.observers`` handles a run that was moved or replaced as a whole.
        """
        try:
            status = os.stat(self.path, follow_symlinks=False)
            if (status.st_dev, status.st_ino) == self._is:
                return False
        except FileNotFoundError:
            pass
        try:
            return self._folder == _identity(self.path.parent)
        except OSError:
            return False

    def _reopen(self) -> None:
        fresh = self._open()
        assert self._fd is not None
        os.close(self._fd)
        self._fd, self._torn = fresh, False

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o644)
        info = os.fstat(fd)
        self._is = (info.st_dev, info.st_ino)
        return fd

    def _refused(self, error: OSError) -> None:
        if self._on_refusal is not None:
            self._on_refusal(self.path, error)


def _identity(path: Path) -> tuple[int, int]:
    info = path.stat()
    return info.st_dev, info.st_ino


def _ends_torn(fd: int) -> bool:
    size = os.fstat(fd).st_size
    return size > 0 and os.pread(fd, 1, size - 1) != b"\n"
