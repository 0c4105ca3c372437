"""Errors of a checkpoint's files: missing, damaged, unreadable, newer, able to carry code. No torch."""

from __future__ import annotations

import errno
import re
import resource
from collections.abc import Sequence
from pathlib import Path

from paceline.checkpoint import codes
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError

_SHARD = re.compile(r"shard-(\d+)-of-\d+\.safetensors")


def scattered(checkpoint: Path, missing: Sequence[str], num_files: int) -> CheckpointError:
    """Return the error for a checkpoint with files that are ``missing`` here."""
    ranks = [int(number[1]) for name in missing if (number := _SHARD.fullmatch(name))]
    other = [name for name in missing if not _SHARD.fullmatch(name)]
    of_ranks = f"the shards of ranks {_runs(ranks)}" if ranks else ""
    names = ", ".join(filter(None, (of_ranks, *other[:3]))) + (" …" if len(other) > 3 else "")
    return CheckpointError(
        codes.CHECKPOINT_INCOMPLETE(
            "the checkpoint is incomplete: files are missing here, or lie on other nodes of the run",
            str(checkpoint),
            f"{len(missing)} of {num_files} files are missing: {names}",
            "where the nodes share no disk, copy the step's folders together first (rsync -a"
            f" NODE:{checkpoint}/ {checkpoint}/ from each); otherwise take another checkpoint",
        )
    )


def _runs(numbers: Sequence[int]) -> str:
    """Return sorted numbers as text: 0, 4 to 7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [str(low) if low == high else f"{low} to {high}" for low, high in runs[:8]]
    return ", ".join(shown) + (" …" if len(runs) > 8 else "")


def incomplete(checkpoint: Path, reason: str) -> CheckpointError:
    """Return the error for an unfinished checkpoint."""
    return CheckpointError(
        codes.CHECKPOINT_INCOMPLETE(
            "the checkpoint is incomplete",
            str(checkpoint),
            reason,
            "resume from another one: set resume_from_checkpoint: latest",
        )
    )


def damaged(checkpoint: Path, name: str, reason: str) -> CheckpointError:
    """Return the error for a file that differs from the manifest."""
    return CheckpointError(
        codes.CHECKPOINT_DAMAGED(str(checkpoint), reason, name=name, evidence={"file": name})
    )


def newer(where: str, version: int, reads: int, written_by: str) -> CheckpointError:
    """Return the error for a manifest of a version that this Paceline does not know."""
    return CheckpointError(
        codes.CHECKPOINT_NEWER(
            where,
            f"manifest version {version}, this Paceline reads 1 to {reads}"
            + (f"; written by Paceline {written_by[:40]}" if written_by else ""),
        )
    )


def unreadable(path: Path, error: OSError) -> CheckpointError:
    """Return the error for a file that may be intact but cannot be opened on this machine or by this user."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    remedy = {
        errno.EMFILE: (
            f"run ulimit -n {max(65_536, 4 * limit)} before the start (the limit here is {limit} open files)"
        ),
        errno.ENFILE: "the machine has too many open files: raise fs.file-max",
        errno.EACCES: "give this user read permission",
        errno.EPERM: "give this user read permission",
    }.get(error.errno or 0, "try again: the file system returned an error")
    return CheckpointError(
        codes.CHECKPOINT_UNREADABLE(
            str(path.parent), error.strerror or str(error), name=path.name, hint=remedy
        )
    )


def skipped(
    checkpoint: str, why: str, where: str, hint: str, problem: Diagnostic | None = None
) -> Diagnostic:
    """Return the warning that a checkpoint is skipped; ``problem``: None for an incomplete one."""
    return codes.RESUME_SKIPPED_INCOMPLETE(
        where,
        problem.found if problem is not None else "",
        checkpoint=checkpoint,
        why=why,
        hint=hint,
        evidence={"cause": problem.code if problem is not None else codes.CHECKPOINT_INCOMPLETE.name},
    )
