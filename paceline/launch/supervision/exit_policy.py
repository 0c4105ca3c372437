"""What follows each exit code: the one table behind restarts, docs, manifests and scripts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from paceline.core.errors import ExitCode


class After(Enum):
    """What follows a job's end, in the words of docs/reference/exit-codes.md."""

    DONE = "nothing"
    FAIL = "fails: the same start would fail again"
    RESUME = "starts again, uncounted"
    COUNT = "starts again, counted"


#: of a node's launcher; every other code counts, since its cause may heal
AFTER: Mapping[int, After] = {
    ExitCode.OK: After.DONE,
    ExitCode.CONFIG: After.FAIL,
    ExitCode.CLOSING: After.DONE,
    ExitCode.STOPPED: After.RESUME,
    ExitCode.PEER_FAILED: After.COUNT,
    ExitCode.PEER_SILENT: After.COUNT,
    ExitCode.INTERRUPTED: After.FAIL,
    137: After.COUNT,  # SIGKILL: out of memory, or a node that went away
    143: After.COUNT,  # SIGTERM before a save
}

#: How much a node's code says about the job's end: a node that failed by itself says more than its peers.
_WEIGHTS = (After.DONE, After.RESUME, After.COUNT, After.FAIL)


def after(code: int) -> After:
    """Return what follows a node's exit code."""
    return AFTER.get(code, After.COUNT)


def decisive(codes: Iterable[int]) -> int:
    """Return the code that decides among those of a job's nodes, given in the order of their ends."""
    return max(codes, key=lambda code: (_WEIGHTS.index(after(code)), code != ExitCode.PEER_FAILED))
