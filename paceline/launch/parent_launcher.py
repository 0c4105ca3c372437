"""Identify the launcher of this process by its parent, so that one rank per node can do shared work."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path


def starter() -> list[str]:
    """Return what the processes of one launcher on this node share: the parent's pid and its start time.

    The start time is needed since pids are reused.
    """
    parent = os.getppid()
    try:
        status = Path(f"/proc/{parent}/stat").read_text("ascii", "replace")
        # field 22, ticks since boot; the name before may hold anything
        begun = status.rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        begun = ""
    return [str(parent), begun]


def node() -> str:
    """Return 8 hex digits that identify this boot of this machine."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        boot = socket.gethostname()
    return hashlib.sha256(f"{boot} {socket.gethostname()}".encode()).hexdigest()[:8]


def stamp_of(path: Path) -> list[int]:
    """Return values that change when a file is written or replaced. Raises OSError."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
