"""Check during training that the run directory is unchanged and its newest checkpoint still exists."""

from __future__ import annotations

import os
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import PacelineError
from paceline.core.rundir import RunDir
from paceline.runlog import codes


class RunDirWatch:
    """Remember the folder by device, inode and name.

    Some object-store file systems assign new inodes; then the name decides. Raises OSError if the folder does
    not exist.
    """

    def __init__(self, run: RunDir) -> None:
        self._root = run.root
        self._fd = os.open(run.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._is = _identity(os.fstat(self._fd))
        self._name = _name(self._fd)
        self._checkpoint: Path | None = None

    def expects(self, checkpoint: str) -> None:
        """Set the newest checkpoint, which only the publication of a later one may remove."""
        self._checkpoint = Path(checkpoint)

    def check(self) -> Diagnostic | None:
        """Return a warning, once, if the newest checkpoint is gone.

        Raises PacelineError (``run.folder_gone``) if the folder was deleted, moved or replaced.
        """
        try:
            there = _identity(self._root.stat())
        except (FileNotFoundError, NotADirectoryError):
            there = None
        except OSError:  # a file server that is briefly unavailable: writes report their own errors
            return None
        if there is None or (there != self._is and (not self._name or _name(self._fd) != self._name)):
            raise PacelineError(self._gone(there is not None))
        if self._checkpoint is not None and not self._checkpoint.is_dir():
            missing, self._checkpoint = self._checkpoint, None
            return codes.RUN_CHECKPOINT_GONE(str(missing))
        return None

    def close(self) -> None:
        """Release the folder. Safe to call twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _gone(self, replaced: bool) -> Diagnostic:
        now = _now_at(self._fd)
        if now:
            message, state = (
                (
                    "the run's folder was moved during training: checkpoints would be written to the"
                    " wrong place"
                ),
                f"it is now {now}",
            )
            remedy = (
                "move it back and resume with --resume latest, or with training.output_dir set to"
                f" its new place: {now}"
            )
        else:
            message = (
                "the run's folder was deleted during training: its logs, events and checkpoints are lost"
            )
            state = "another folder with that name" if replaced else "no such folder"
            remedy = "start again; leave the folder of a run in place until it has ended"
        return codes.RUN_FOLDER_GONE(message, str(self._root), state, remedy)


def _identity(info: os.stat_result) -> tuple[int, int]:
    return info.st_dev, info.st_ino


def _name(fd: int) -> str:
    """Return the path of an open folder according to the kernel; empty if unknown."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def _now_at(fd: int) -> str:
    """Return the current path of an open folder; empty if it is deleted or unknown."""
    path = _name(fd)
    try:
        return path if path and _identity(os.stat(path)) == _identity(os.fstat(fd)) else ""
    except OSError:
        return ""
