"""The second wall: which files may be read and written, whatever is mounted (Landlock, Linux 5.13+)."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Sequence

from paceline.algorithms.rewards.sandbox.syscalls import (
    LANDLOCK_ADD_RULE,
    LANDLOCK_CREATE_RULESET,
    LANDLOCK_RESTRICT_SELF,
    checked,
    syscall,
)

# linux/landlock.h
_READ = 1 << 0 | 1 << 2 | 1 << 3  # execute, read a file, read a folder
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}  # all rights by version
_OF_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15  # the others apply to folders
_TCP, _SCOPES = 3, 3  # bind and connect; abstract sockets and signals


def version() -> int:
    """Return the kernel's Landlock version; 0 if it has none."""
    return max(0, syscall(LANDLOCK_CREATE_RULESET, None, 0, 1))


def restrict(readable: Sequence[str], writable: Sequence[str]) -> bool:
    """Restrict this process for good: it may read only below ``readable`` and write only below ``writable``.

    As far as this kernel's version can, it also opens no TCP connections and sends no signals outside.
    Returns False without Landlock. Needs no_new_privs. Raises OSError.
    """
    known = version()
    if not known:
        return False
    handled = _RIGHTS[max(v for v in _RIGHTS if v <= known)]
    attributes = struct.pack("=QQQ", handled, _TCP, _SCOPES)[: 24 if known >= 6 else 16 if known >= 4 else 8]
    ruleset = checked(syscall(LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0), "landlock")
    try:
        for path in readable:
            _allow(ruleset, path, _READ & handled)
        for path in writable:
            _allow(ruleset, path, handled)
        checked(syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)
    return True


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        kept = rights if stat.S_ISDIR(os.fstat(place).st_mode) else rights & _OF_FILES
        rule = ctypes.create_string_buffer(struct.pack("=Qi", kept, place), 12)
        checked(syscall(LANDLOCK_ADD_RULE, ruleset, 1, ctypes.byref(rule), 0), f"landlock {path}")
    finally:
        os.close(place)
