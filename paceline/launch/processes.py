"""Finding and signalling processes by ``/proc``; without it (not Linux) only process groups are known."""

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
STOPPED = ("T", "t")  # states of a process that no signal but SIGKILL ends (SIGSTOP, a debugger)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> Callable[[], None] | None:
    """A function for the child, between fork and exec: the kernel sends it SIGTERM when the parent dies. None where there is no such thing."""
    if sys.platform != "linux":
        return None
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            os._exit(143)

    return prepare


def send(pid: int, number: int) -> None:
    """A signal to one process; nothing when it is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def send_group(pid: int, number: int) -> None:
    """A signal to the process group that ``pid`` leads; nothing when it is gone."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def rank_children(pid: int) -> list[int]:
    """The direct children of ``pid`` that are workers: those with ``LOCAL_RANK`` in their environment."""
    children = []
    for entry in _numeric(PROC):
        if parent_of(entry) == pid and any(line.startswith(b"LOCAL_RANK=") for line in _environment(entry)):
            children.append(entry)
    return children


def marked(mark: str) -> list[int]:
    """All processes whose environment carries this mark, but for this one; zombies have none."""
    wanted = f"{MARK}={mark}".encode()
    own = os.getpid()
    return [pid for pid in _numeric(PROC) if pid != own and wanted in _environment(pid)]


def environments() -> Iterator[tuple[int, frozenset[str]]]:
    """Each process that this user may look at, with its environment as ``NAME=value``."""
    for pid in _numeric(PROC):
        yield pid, frozenset(line.decode("utf-8", "replace") for line in _environment(pid))


def end_all(leaders: Iterable[int], mark: str) -> None:
    """Ends the groups led by ``leaders`` and every process that carries ``mark``: SIGTERM, ``GRACE_SECONDS``, SIGKILL."""
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
    """The letter of ``/proc/PID/stat``: R, S, D, Z, T (stopped) …; empty for no such process, ``?`` where the system does not tell."""
    try:
        stat = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return "" if (PROC / "self").exists() else "?"
    return stat[stat.rindex(b")") + 2 :][:1].decode()


def parent_of(pid: int) -> int:
    """The process that started ``pid``; -1 where the system does not tell."""
    try:
        stat = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return -1
    return int(stat[stat.rindex(b")") + 2 :].split()[1])
