"""Who started this process, so that work of a node is done by one of its ranks: they have the same parent."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path


def starter() -> list[str]:
    """What the processes that one launcher began on this node have in common: the parent's id and when it began (ids are used again)."""
    parent = os.getppid()
    try:
        status = Path(f"/proc/{parent}/stat").read_text("ascii", "replace")
        begun = status.rpartition(")")[2].split()[19]  # field 22, ticks since boot; the name before may hold anything
    except (OSError, IndexError):
        begun = ""
    return [str(parent), begun]


def node() -> str:
    """8 hex digits of this boot of this machine."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        boot = socket.gethostname()
    return hashlib.sha256(f"{boot} {socket.gethostname()}".encode()).hexdigest()[:8]


def stamp_of(path: Path) -> list[int]:
    """What changes when a file is written or replaced. Raises OSError."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
