"""Reasons and hints for OS errors of the file system: disk full, read-only, stale handle and others."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

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
