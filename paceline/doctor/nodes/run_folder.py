"""Try the disk of the run's folder: write, flush, lock; and see whether the nodes share it."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.files import not_writable
from paceline.core.units import human_bytes
from paceline.doctor.nodes import codes
from paceline.doctor.nodes.messages import FolderView

KEY = "training.output_dir"
WAIT_SECONDS = 20.0  # a disk of a dead server blocks for ever
SLOW_SECONDS = 0.25  # for the quickest of some flushes of a page
_FLUSHES, _PAGE, _BLOCK = 5, b"\0" * 4096, b"\0" * (4 << 20)
FEW_FILES = 1000  # that can still be created
_LOOKS, _BETWEEN_SECONDS = 4, 0.25  # a network file system may show a new name late


def nearest_folder(run: Path) -> Path:
    """Return ``run``, or the nearest folder above it that exists."""
    return next((p for p in (run, *run.parents) if os.path.isdir(p)), Path("/"))


def folder_findings(run: Path) -> list[Diagnostic]:
    """Return what is wrong with the disk of ``run``. Leaves nothing behind."""
    folder = nearest_folder(run)
    results: list[list[Diagnostic]] = []
    thread = threading.Thread(target=lambda: results.append([*_findings(run, folder)]), daemon=True)
    thread.start()
    thread.join(WAIT_SECONDS)
    if results:
        return results[0]
    return [codes.NODE_DISK_STUCK(KEY, str(folder), seconds=f"{WAIT_SECONDS:.0f}")]


def _findings(run: Path, folder: Path) -> Iterator[Diagnostic]:
    if wrong := not_writable(run):
        yield codes.NODE_FOLDER(KEY, wrong)
        return
    file = folder / f".paceline-doctor-{os.getpid()}"
    try:
        seconds = _timed_flushes(file)
    except OSError as error:
        yield _refusal(error, folder)
        return
    finally:
        with suppress(OSError):
            file.unlink(missing_ok=True)
    if seconds > SLOW_SECONDS:
        yield codes.NODE_FSYNC(KEY, f"{seconds:.2f} s for 4 KiB on {folder}")
    status = os.statvfs(folder)
    if status.f_files and status.f_favail < FEW_FILES:
        severity = Severity.WARNING if status.f_favail else Severity.ERROR
        yield codes.NODE_INODES(KEY, f"{status.f_favail} of {status.f_files} on {folder}", severity=severity)


def _refusal(error: OSError, folder: Path) -> Diagnostic:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = os.statvfs(folder)
        left = f"{human_bytes(free.f_bavail * free.f_frsize)} and {free.f_favail} files free"
        return codes.NODE_DISK_FULL(KEY, f"{folder}: {error.strerror}; {left}")
    return codes.NODE_FOLDER(KEY, f"{folder}: {error.strerror or error}")


def _timed_flushes(file: Path) -> float:
    """Write 4 MiB, and then pages; return the seconds of the quickest flush of a page."""
    number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with closing(os.fdopen(number, "wb", buffering=0)) as stream:
        stream.write(_BLOCK)
        os.fsync(number)
        seconds = []
        for _ in range(_FLUSHES):
            begun = time.monotonic()
            stream.write(_PAGE)
            os.fsync(number)
            seconds.append(time.monotonic() - begun)
        return min(seconds)


class FolderToken:
    """This node's file in the run's folder, by which the other nodes find out whether they share it.

    NodeServer 0 keeps its own locked.
    """

    def __init__(self, run: Path, token: str, rank: int) -> None:
        self._folder, self._token, self._rank = nearest_folder(run), token, rank
        self._number: int | None = None
        with suppress(OSError):  # the finding about the folder says so
            self._number = os.open(
                self._path(rank), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600
            )
            if rank == 0:
                fcntl.flock(self._number, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def look(self, ranks: Sequence[int]) -> FolderView:
        """Look for the files of other nodes; try the lock of node 0's."""
        sees: list[int] = []
        for _ in range(_LOOKS):
            sees = [rank for rank in ranks if os.path.exists(self._path(rank))]
            if len(sees) == len(ranks):
                break
            with suppress(OSError):
                os.listdir(self._folder)  # asks a network file system anew
            time.sleep(_BETWEEN_SECONDS)
        return FolderView(tuple(sees), 0 not in sees or self._rank == 0 or self._is_locked())

    def remove(self) -> None:
        """Delete the file."""
        if self._number is not None:
            with suppress(OSError):
                os.unlink(self._path(self._rank))
            os.close(self._number)
            self._number = None

    def _is_locked(self) -> bool:
        try:
            number = os.open(self._path(0), os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            return True  # it is another user's
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False  # this file system has no locks
        finally:
            os.close(number)
        return False

    def _path(self, rank: int) -> Path:
        return self._folder / f".paceline-doctor-{self._token}-{rank}"
