"""Open files by user-given paths. FIFOs, sockets and devices are refused: reading one may never end.

A pointer of Git LFS, three lines of text in place of a file that was not downloaded, is recognised.

Reasons and hints for OS errors of the file system: disk full, read-only, stale handle and others.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from paceline.core import codes
from paceline.core.diagnostics import Diagnostic

MAX_JSON_BYTES = 32 << 20  # of one of the files that describe a run
MAX_CONFIG_BYTES = 16 << 20  # of a model's or an adapter's JSON config
MAX_INDEX_BYTES = 256 << 20  # of the index of a model's weight files
_RUN_FOLDERS = ("events", "logs", "pictures", "profile")  # in a run directory (``rundir.py``)
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def no_file(path: Path) -> str | None:
    """Return the kind of special file at ``path`` (``a FIFO``, …); None for a file, a folder or no entry.

    Follows links; never raises OSError.
    """
    try:
        return _KINDS.get(stat.S_IFMT(path.stat().st_mode))
    except OSError:
        return None


def is_local_name(name: str) -> bool:
    """Whether ``name`` can only be a path, as no name on the hub is (``model`` or ``org/model``)."""
    return name.startswith(("/", ".", "~")) or (name.count("/") > 1 and "://" not in name)


def open_file(path: Path) -> io.BufferedReader:
    """Open a regular file for reading bytes.

    Raises OSError, also for a FIFO, a socket or a device, whose opening or reading might block forever.
    """
    if (kind := no_file(path)) is not None:
        raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # non-blocking: a FIFO may replace it
    try:
        mode = os.fstat(number).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        # Checked again on what was opened: the path may have changed meanwhile
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a file", str(path))
        return os.fdopen(number, "rb")
    except BaseException:
        os.close(number)
        raise


def open_text(path: Path) -> TextIO:
    """Open a file as UTF-8 text, with or without a BOM; line ends are not translated.

    Raises as ``open_file``.
    """
    return io.TextIOWrapper(open_file(path), encoding="utf-8-sig", newline="")


def read_bytes(path: Path) -> bytes:
    """Read a whole file. Raises OSError as ``open_file`` does."""
    with open_file(path) as file:
        return file.read()


def read_text(path: Path) -> str:
    """Read a whole file as UTF-8.

    Raises OSError as ``open_file`` does, and ValueError when it is not UTF-8.
    """
    return read_bytes(path).decode("utf-8")


def open_run_file(path: Path) -> io.BufferedReader:
    """Open a file of a run directory for reading bytes: one in it, or in a folder of it.

    Anyone may have made the directory (a shared disk, an archive). So no link is followed, for the file or
    the folder: otherwise a report could show a file from elsewhere. Raises OSError; FileNotFoundError also if
    the name belongs to a FIFO, a link or a folder.
    """
    folder = path.parent
    for part in (path, folder) if folder.name in _RUN_FOLDERS else (path,):
        if part.is_symlink():
            raise FileNotFoundError(errno.ENOENT, "it is a link, not a file of the run", str(part))
    try:
        return open_file(path)
    except IsADirectoryError as error:
        raise FileNotFoundError(errno.ENOENT, "it is a folder, not a file", str(path)) from error
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENXIO):
            raise FileNotFoundError(errno.ENOENT, error.strerror, str(path)) from error
        raise


def written_from(file: io.BufferedReader, offset: int) -> int:
    """Return where written bytes begin, at ``offset`` or later. A hole of a sparse file has none, and reading
    a terabyte of hole takes an hour.
    """
    number = file.fileno()
    here = os.lseek(number, 0, os.SEEK_CUR)
    try:
        return os.lseek(number, offset, os.SEEK_DATA)
    except OSError as error:  # no such byte, or a file system that knows no holes
        return max(offset, os.fstat(number).st_size) if error.errno == errno.ENXIO else offset
    finally:
        os.lseek(number, here, os.SEEK_SET)  # the reader's buffer relies on it


def read_run_file(path: Path) -> str:
    """Read a JSON file of a run directory, at most MAX_JSON_BYTES, replacing what is no UTF-8.

    Raises OSError as ``open_run_file``, also if it is longer.
    """
    with open_run_file(path) as file:
        data = file.read(MAX_JSON_BYTES + 1)
    if len(data) > MAX_JSON_BYTES:
        raise FileNotFoundError(errno.ENOENT, f"it has more than {MAX_JSON_BYTES >> 20} MiB", str(path))
    return data.decode("utf-8", "replace")


def _is_there(path: Path) -> bool:
    """Whether ``path`` exists, counting a dangling link.

    Raises OSError for an impossible path (name too long).
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def not_writable(folder: Path) -> str | None:
    """Return why files cannot be written into ``folder`` (which may not exist yet); None when they can."""
    try:
        there = next((p for p in (folder, *folder.parents) if _is_there(p)), Path("/"))
        if not there.exists():
            return f"{there} is a dangling symbolic link"
        # /proc and /sys accept files that nothing keeps
        real = there.resolve()
    except (OSError, ValueError, RuntimeError) as error:  # name too long, circular links
        return getattr(error, "strerror", None) or str(error)
    if not there.is_dir():
        return f"{there} is not a folder"
    if real.is_relative_to("/proc") or real.is_relative_to("/sys"):
        return f"{there} is a path of the kernel (/proc, /sys or /dev)"
    return None if os.access(there, os.W_OK | os.X_OK) else f"{there}: {os.strerror(errno.EACCES)}"


def listed(folder: Path, pattern: str = "*") -> list[Path]:
    """Return the paths in ``folder`` that match ``pattern`` (as ``Path.glob``), sorted.

    Empty if it is not a folder or not readable, also if it is deleted between ``is_dir`` and ``glob``.
    """
    try:
        return sorted(folder.glob(pattern))
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
        return []


def special_files(folder: Path) -> list[str]:
    """List the special files in ``folder`` as ``name: a FIFO``; empty when the folder cannot be listed."""
    try:
        inside = sorted(folder.iterdir())
    except OSError:
        return []
    return [f"{path.name}: {kind}" for path in inside if (kind := no_file(path)) is not None]


_BEGIN, _MAX_BYTES = b"version https://git-lfs", 1024


def pointers(files: Iterable[Path], where: str = "") -> Diagnostic | None:
    """Return the error about pointers among ``files``, at ``where`` (default: the first)."""
    names = [str(file) for file in files if _is_pointer(file)]
    return codes.CORE_LFS_POINTER(where or names[0], ", ".join(names[:4])) if names else None


def pointers_in(folder: Path, where: str) -> Diagnostic | None:
    """Return the error about the pointers in a folder."""
    try:
        return pointers(sorted(folder.iterdir()), where)
    except OSError:
        return None  # reported by whoever reads the folder


def _is_pointer(file: Path) -> bool:
    try:
        if not file.is_file() or file.stat().st_size > _MAX_BYTES:
            return False
        with open_file(file) as stream:
            return stream.read(len(_BEGIN)) == _BEGIN
    except OSError:
        return False


_SPACE = "free space on that disk, or set training.output_dir to another disk"
_WRITE = "give this user write permission, or set training.output_dir to another folder"


@dataclass(frozen=True)
class Refusal:
    """Why the operating system refused a file operation.

    ``kind``: disk_full, no_inodes, quota, read_only, permission, too_large, too_many_files, gone or broken.
    ``of_the_disk``: whether every file on that file system is affected.
    """

    kind: str
    reason: str
    hint: str
    of_the_disk: bool = False


_BY_ERRNO = {
    errno.ENOSPC: Refusal("disk_full", "the disk is full", _SPACE, True),
    errno.EDQUOT: Refusal("quota", "the disk quota is used up", _SPACE, True),
    errno.EROFS: Refusal(
        "read_only",
        "the file system is read-only",
        "remount it read-write, or set training.output_dir to another file system",
        True,
    ),
    errno.EACCES: Refusal("permission", "permission denied", _WRITE),
    errno.EPERM: Refusal("permission", "permission denied", _WRITE),
    errno.EFBIG: Refusal(
        "too_large",
        "a file has reached the maximum size allowed",
        "run `ulimit -f unlimited`, or use another file system",
    ),
    errno.EMFILE: Refusal("too_many_files", "this process has too many open files", "ulimit -n 65536"),
    errno.ENFILE: Refusal(
        "too_many_files", "the machine has too many open files", "close some files, or raise fs.file-max"
    ),
    errno.ESTALE: Refusal(
        "gone", "the file was replaced on the server while it was in use", "check the file server"
    ),
    errno.EIO: Refusal("broken", "the disk reports an I/O error", "check the kernel log (dmesg)"),
}
_NO_INODES = Refusal(
    "no_inodes",
    "the disk cannot hold another file (it has no free inodes)",
    "remove files there, or set training.output_dir to another disk",
    True,
)


def refusal_of(error: OSError, where: Path | None = None) -> Refusal | None:
    """Return the refusal for ``error`` at ``where``; None when it is no file-system error."""
    refusal = _BY_ERRNO.get(error.errno or 0)
    if refusal is not None and error.errno == errno.ENOSPC and where is not None and _without_inodes(where):
        return _NO_INODES
    return refusal


def _without_inodes(where: Path) -> bool:
    """Whether the file system of ``where`` (or its nearest existing parent) has no free inodes."""
    for folder in (where, *where.parents):
        try:
            info = os.statvfs(folder)
        except OSError:
            continue
        # btrfs and some network file systems count no inodes
        return info.f_files > 0 and info.f_favail == 0
    return False
