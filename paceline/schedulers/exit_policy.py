"""What a scheduler does with each exit code: the one table behind docs, manifests and scripts."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from paceline.core.errors import ExitCode


class After(Enum):
    """What follows a job's end."""

    DONE = "finished: nothing follows"
    FAIL = "fails at once: the same start would fail again"
    RESUME = "starts again without counting: it stopped and can go on"
    COUNT = "starts again, and counts against the limit"


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
