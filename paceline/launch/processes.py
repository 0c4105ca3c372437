"""Find, identify and signal processes through ``/proc``.

Without it (not Linux) only process groups can be signalled.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

MARK = "PACELINE_START_ID"  # in the environment of all that a launcher starts
PROC = Path("/proc")
GRACE_SECONDS = 2.0  # from SIGTERM to SIGKILL at the end of a run
STOPPED = ("T", "t")  # process states in which only SIGKILL takes effect (SIGSTOP, a debugger)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# proc(5): places among the fields of /proc/PID/stat that follow the program's name
_STATE, _PARENT, _START_TICKS, _ENVIRONMENT = 0, 1, 19, 47


def die_with_parent(parent: int | None = None) -> Callable[[], None] | None:
    """Return a ``preexec_fn`` that makes the kernel send SIGTERM to the child when its parent dies.

    None if unsupported. ``parent``: its pid, by default this process's.
    """
    if sys.platform != "linux":
        return None
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = parent or os.getpid()

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(143)

    return prepare


def send(pid: int, number: int) -> None:
    """Send a signal to one process; do nothing if it is gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def send_group(pid: int, number: int) -> None:
    """Send a signal to the process group led by ``pid``; do nothing if it is gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def rank_children(pid: int) -> list[int]:
    """Return the direct children of ``pid`` that are workers: ``LOCAL_RANK`` is in their environment."""
    children = (child for child in _pids() if parent_of(child) == pid)
    return [c for c in children if any(line.startswith(b"LOCAL_RANK=") for line in _environment(c))]


def marked(mark: str) -> list[int]:
    """Return all processes whose environment has this mark, except this one (a zombie has no environment)."""
    wanted = f"{MARK}={mark}".encode()
    return [pid for pid in _pids() if pid != os.getpid() and wanted in _environment(pid)]


def environments() -> Iterator[tuple[int, frozenset[str]]]:
    """Yield (pid, its environment as ``NAME=value``) of each process that this user may inspect."""
    for pid in _pids():
        yield pid, frozenset(line.decode("utf-8", "replace") for line in _environment(pid))


def end_all(leaders: Iterable[int], mark: str) -> None:
    """End the groups of ``leaders`` and all processes with ``mark``: SIGTERM, ``GRACE_SECONDS``, SIGKILL."""
    leaders, rest = list(leaders), marked(mark)
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
    # Looked up again: processes may have been started meanwhile.
    for pid in marked(mark):
        send(pid, signal.SIGKILL)


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir(PROC) if name.isdigit()]
    except OSError:
        return []


def _environment(pid: int) -> list[bytes]:
    try:
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:  # gone, or another user's
        return []


def own_bytes(pid: int) -> int:
    """Return the bytes of memory that a process shares with no other; 0 if unknown."""
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text("ascii").splitlines()
    except OSError:
        return 0
    # Private pages, clean and dirty, which smaps_rollup gives in KiB.
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def write_environment(name: str, value: str) -> None:
    """Overwrite a variable, of the same length, in what ``/proc`` shows of this process since its start."""
    import ctypes

    fields = _stat(os.getpid())
    start, stop = int(fields[_ENVIRONMENT]), int(fields[_ENVIRONMENT + 1])
    place = ctypes.string_at(start, stop - start).find(f"{name}=".encode())
    line = f"{name}={value}".encode()
    if place >= 0 and any(
        len(old) == len(line) and old.startswith(f"{name}=".encode()) for old in _environment(os.getpid())
    ):
        ctypes.memmove(start + place, line, len(line))


def _stat(pid: int) -> list[bytes]:
    """Return the fields of ``/proc/PID/stat`` that follow the name (it may hold anything); [] if gone."""
    try:
        return (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []


def state_of(pid: int) -> str:
    """Return the state letter of ``/proc/PID/stat``: R, S, D, Z, T (stopped) ….

    Empty if gone, ``?`` without /proc.
    """
    fields = _stat(pid)
    if not fields:
        return "" if (PROC / "self").exists() else "?"
    return fields[_STATE].decode()


def started_at(pid: int) -> int:
    """Return when a process began (clock ticks since boot), which tells a reused pid from the old one; -1 if
    unknown.
    """
    fields = _stat(pid)
    return -1 if not fields or fields[_STATE] == b"Z" else int(fields[_START_TICKS])


def parent_of(pid: int) -> int:
    """Return the parent's pid; -1 if unknown."""
    fields = _stat(pid)
    return int(fields[_PARENT]) if fields else -1


def lineage() -> list[int]:
    """Return the pids of this process and of those that it descends from, nearest first."""
    pids, pid = [os.getpid()], os.getppid()
    while pid > 0 and pid not in pids:
        pids.append(pid)
        pid = parent_of(pid)
    return pids


def starter() -> list[str]:
    """Return an identity shared by the processes of one launcher on this node: the parent's pid and start
    time.

    The start time is needed since pids are reused.
    """
    return [str(os.getppid()), str(started_at(os.getppid()))]


def node() -> str:
    """Return 8 hex digits that identify this boot of this machine."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        boot = socket.gethostname()
    return hashlib.sha256(f"{boot} {socket.gethostname()}".encode()).hexdigest()[:8]
