"""Stale locks of builds of DeepSpeed's async_io op.

A killed build leaves its lock, and torch's ``FileBaton.wait`` then waits forever, silently.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.core.files import listed
from paceline.launch import codes

OP = "async_io"
LOCK = "lock"  # torch.utils.file_baton is given this name by cpp_extension
PATIENCE_SECONDS = 900.0  # a build takes a minute or two


def build_locks(environ: Mapping[str, str], op: str = OP) -> list[Path]:
    """Return the locks of builds of ``op`` (``torch.utils.cpp_extension._get_build_directory``)."""
    folder = environ.get("TORCH_EXTENSIONS_DIR")
    if folder:
        return [lock for lock in [Path(folder) / op / LOCK] if lock.exists()]
    cache = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".cache"
    version = f"py{sys.version_info.major}{sys.version_info.minor}{getattr(sys, 'abiflags', '')}"
    return sorted((Path(cache) / "torch_extensions").glob(f"{version}_*/{op}/{LOCK}"))


def owner_of(lock: Path, proc: Path = Path("/proc")) -> int | None:
    """Return the pid of a process on this machine that holds ``lock`` open, as a running build does.

    Else None.

    Processes of other users cannot be inspected.
    """
    try:
        wanted = os.stat(lock)
    except OSError:
        return None
    # Processes end meanwhile
    for opened in (fd for process in listed(proc, "[0-9]*") for fd in listed(process / "fd")):
        try:
            same = os.readlink(opened).endswith(f"/{LOCK}") and os.path.samestat(os.stat(opened), wanted)
        except OSError:  # closed meanwhile, or another user's
            continue
        if same:
            return int(opened.parts[-3])
    return None


def op_lock_problems(environ: Mapping[str, str]) -> list[Diagnostic]:
    """Check before a start that needs the op: return a diagnostic for each lock without an owner."""
    return [ownerless(lock) for lock in build_locks(environ) if owner_of(lock) is None]


def ownerless(lock: Path) -> Diagnostic:
    """Return the diagnostic for a lock without an owner."""
    return codes.LAUNCH_OP_LOCK(str(lock), f"{lock}, which no process of this machine has open", lock=lock)


def await_build(environ: Mapping[str, str], patience: float = PATIENCE_SECONDS, pause: float = 1.0) -> str:
    """Wait while another process builds the op; return why waiting is hopeless, or empty when it is done.

    Hopeless: a lock without an owner, or a build longer than ``patience`` seconds.
    """
    until = time.monotonic() + patience
    while True:
        held = {lock: owner_of(lock) for lock in build_locks(environ)}
        for lock, owner in held.items():
            if owner is None and lock.exists():
                return f"{ownerless(lock).found}: rm {lock}"
        if not held:
            return ""
        if time.monotonic() > until:
            lock, owner = next(iter(held.items()))
            return f"process {owner} has held {lock} for {patience:.0f} s"
        time.sleep(pause)
