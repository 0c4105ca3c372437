"""Find and signal processes through ``/proc``.

Without it (not Linux) only process groups can be signalled.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

MARK = "PACELINE_START_ID"
PROC = Path("/proc")
GRACE_SECONDS = 2.0
STOPPED = ("T", "t")  # process states in which only SIGKILL takes effect (SIGSTOP, a debugger)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> Callable[[], None] | None:
    """Return a ``preexec_fn`` that makes the kernel send SIGTERM to the child when its parent dies.

    None if unsupported.
    """
    if sys.platform != "linux":
        return None
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(143)

    return prepare


def send(pid: int, number: int) -> None:
    """Send a signal to one process; do nothing if it is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def send_group(pid: int, number: int) -> None:
    """Send a signal to the process group led by ``pid``; do nothing if it is gone."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def rank_children(pid: int) -> list[int]:
    """Return the direct children of ``pid`` that are workers: ``LOCAL_RANK`` is in their environment."""
    children = []
    for entry in _numeric(PROC):
        if parent_of(entry) == pid and any(line.startswith(b"LOCAL_RANK=") for line in _environment(entry)):
            children.append(entry)
    return children


def marked(mark: str) -> list[int]:
    """Return all processes whose environment has this mark, except this one (a zombie has no environment)."""
    wanted = f"{MARK}={mark}".encode()
    own = os.getpid()
    return [pid for pid in _numeric(PROC) if pid != own and wanted in _environment(pid)]


def environments() -> Iterator[tuple[int, frozenset[str]]]:
    """Yield (pid, its environment as ``NAME=value``) of each process that this user may inspect."""
    for pid in _numeric(PROC):
        yield pid, frozenset(line.decode("utf-8", "replace") for line in _environment(pid))


def end_all(leaders: Iterable[int], mark: str) -> None:
    """End the groups of ``leaders`` and all processes with ``mark``: SIGTERM, ``GRACE_SECONDS``, SIGKILL."""
    leaders = list(leaders)
    rest = marked(mark)
    if not leaders and not rest:
        return
    for pid in leaders:
        send_group(pid, signal.SIGTERM)
    for pid in rest:
        send(pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline and marked(mark):
        time.sleep(0.05)
    for pid in leaders:
        send_group(pid, signal.SIGKILL)
    for pid in marked(mark):
        send(pid, signal.SIGKILL)


def _numeric(proc: Path) -> list[int]:
    try:
        return [int(name) for name in os.listdir(proc) if name.isdigit()]
    except OSError:
        return []


def _environment(pid: int) -> list[bytes]:
    try:
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:  # gone, or another user's
        return []


def state_of(pid: int) -> str:
    """Return the state letter of ``/proc/PID/stat``: R, S, D, Z, T (stopped) ….

    Empty if gone, ``?`` without /proc.
    """
    try:
        stat = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return "" if (PROC / "self").exists() else "?"
    return stat[stat.rindex(b")") + 2 :][:1].decode()


def started_at(pid: int) -> int:
    """Return when a process began (clock ticks since boot), by which a reused pid is told; -1 if unknown."""
    try:
        stat = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return -1
    fields = stat[stat.rindex(b")") + 2 :].split()
    return -1 if fields[0] == b"Z" else int(fields[19])


def lineage() -> set[int]:
    """Return the pids of this process and of those that it descends from."""
    found, pid = {os.getpid()}, os.getppid()
    while pid > 0 and pid not in found:
        found.add(pid)
        pid = parent_of(pid)
    return found


def parent_of(pid: int) -> int:
    """Return the parent's pid; -1 if unknown."""
    try:
        stat = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return -1
    return int(stat[stat.rindex(b")") + 2 :].split()[1])
