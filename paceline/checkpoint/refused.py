"""Errors of a checkpoint's files: missing, damaged, unreadable, newer, able to carry code. No torch."""

from __future__ import annotations

import errno
import resource
from pathlib import Path

from paceline.checkpoint import codes
from paceline.core.errors import CheckpointError


def incomplete(checkpoint: Path, found: str) -> CheckpointError:
    """Return the error for an unfinished checkpoint."""
    return CheckpointError(
        codes.CHECKPOINT_INCOMPLETE(
            "the checkpoint is incomplete",
            str(checkpoint),
            found,
            "resume from another one: set resume_from_checkpoint: latest",
        )
    )


def damaged(checkpoint: Path, name: str, found: str) -> CheckpointError:
    """Return the error for a file that differs from the manifest."""
    return CheckpointError(
        codes.CHECKPOINT_DAMAGED(
            f"'{name}' differs from the file that was published",
            str(checkpoint),
            found,
            "resume from another checkpoint (resume_from_checkpoint: latest falls back to the previous"
            " complete one)",
            evidence={"file": name},
        )
    )


def newer(where: str, version: int, reads: int, written_by: str) -> CheckpointError:
    """Return the error for a manifest of a version that this Paceline does not know."""
    return CheckpointError(
        codes.CHECKPOINT_NEWER(
            "the checkpoint was written by a newer Paceline; it is not damaged",
            where,
            f"manifest version {version}, this Paceline reads 1 to {reads}"
            + (f"; written by Paceline {written_by[:40]}" if written_by else ""),
            "install that version of Paceline, or resume from an earlier checkpoint by its path",
        )
    )


def unreadable(path: Path, error: OSError) -> CheckpointError:
    """Return the error for a file that may be intact but cannot be opened on this machine or by this user."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    hint = {
        errno.EMFILE: (
            f"run ulimit -n {max(65_536, 4 * limit)} before the start (the limit here is {limit} open files)"
        ),
        errno.ENFILE: "the machine has too many open files: raise fs.file-max",
        errno.EACCES: "give this user read permission",
        errno.EPERM: "give this user read permission",
    }.get(error.errno or 0, "try again: the file system returned an error")
    what = f"'{path.name}' cannot be opened here; there is no sign that it is damaged"
    return CheckpointError(
        codes.CHECKPOINT_UNREADABLE(what, str(path.parent), error.strerror or str(error), hint)
    )


def foreign_file(path: Path) -> CheckpointError:
    """Return the error for a file type that can carry code."""
    return CheckpointError(
        codes.CHECKPOINT_FOREIGN_FILE(
            f"'{path.name}' has a pickle suffix, and pickle files can run code; Paceline writes"
            " only safetensors and JSON",
            str(path.parent),
            path.name,
            "find out where it comes from, then remove it; convert foreign weights to safetensors",
        )
    )
