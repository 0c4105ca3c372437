"""``python -m paceline.runtime.failures.pod_probe RUN``: whether a pod's ranks write their heartbeats.

Kubernetes runs it in the pod. It answers 0 while one of this host's ranks writes, and once all have ended,
since what is left is the launcher's. It answers 1 before the first heartbeat of this start, and when all have
been silent for minutes although the disk takes files. On a full or vanished disk a run goes on without
heartbeats, so silence means nothing there.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from paceline.core.files import listed
from paceline.core.rundir import RunDir
from paceline.launch.processes import PROC, started_at
from paceline.launch.program import program
from paceline.runtime.failures.heartbeat import read_heartbeat

#: Far longer than a rank holds Python's lock: a save of all tensors in one call, a compiler
SILENT_SECONDS = 600.0
_FIRST_PROCESS = 1  # of the container


@program
def main(argv: Sequence[str]) -> int:
    """Return the probe's answer."""
    folder = RunDir.at(argv[0]).events_dir
    written = last_signs(folder, socket.gethostname(), container_start())
    if not written:
        return 1
    # The youngest one: a single hung rank is ended by the others, not by killing the pod.
    if max(written) > time.time() - SILENT_SECONDS:
        return 0
    return 1 if takes_files(folder) else 0


def last_signs(folder: Path, host: str, since: float) -> list[float]:
    """Return when each rank of ``host`` last wrote, since ``since``; infinity for one that has ended.

    Files of an earlier start may lie there, whose pods had the same name.
    """
    signs = []
    for path in listed(folder, "*.heartbeat"):
        match read_heartbeat(path):
            case {"host": str(where), "phase": str(phase), "time": int() | float() as written}:
                if where == host and written >= since:
                    signs.append(float("inf") if phase == "ended" else float(written))
    return signs


def container_start() -> float:
    """Return when this container's first process began, in seconds since the epoch; 0 if unknown."""
    ticks = started_at(_FIRST_PROCESS)
    lines = (PROC / "stat").read_text("ascii", "replace").splitlines()
    boot = next((float(line.split()[1]) for line in lines if line.startswith("btime ")), 0.0)
    return 0.0 if ticks < 0 else boot + ticks / os.sysconf("SC_CLK_TCK")


def takes_files(folder: Path) -> bool:
    """Whether a file can be written next to the heartbeats, as they are."""
    path = folder / f".probe-{os.getpid()}"
    try:
        path.write_text("0" * 512)
        path.unlink()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
