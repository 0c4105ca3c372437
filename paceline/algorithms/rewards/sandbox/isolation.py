"""The sandbox's first layer: a root of read-only folders, and private files in memory.

Without namespaces only resource limits and Landlock remain.
"""

from __future__ import annotations

import ctypes
import os
import resource
import stat
import struct
from collections.abc import Sequence
from typing import TypedDict

from paceline.algorithms.rewards.sandbox import seccomp, syscalls
from paceline.algorithms.rewards.sandbox.syscalls import (
    LANDLOCK_ADD_RULE,
    LANDLOCK_CREATE_RULESET,
    LANDLOCK_RESTRICT_SELF,
    checked,
    syscall,
)

NOBODY = 65534
WRITABLE = ("/tmp", "/dev/shm")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_OWN_BYTES, _OWN_FILES = 16 << 20, 256  # for each of WRITABLE
_FILE_BYTES, _OPEN_FILES, _THREADS = 1 << 20, 64, 64


class ProgramLimits(TypedDict):
    """What a program may use: CPU seconds, bytes of memory, folders; ``folder`` is its private folder where
    there are no namespaces.
    """

    seconds: int
    memory: int
    folder: str
    readable: list[str]


def map_ids(pid: int) -> None:
    """Map ids in the user namespace of ``pid``. Raises OSError.

    Root keeps all ids; another user maps only itself (as nobody).
    """
    maps = {kind: _known_ids(kind) for kind in ("uid", "gid")}
    everybody = os.geteuid() == 0 and all(any(f <= NOBODY < f + n for f, n in ids) for ids in maps.values())
    for kind, user_id in (("uid", os.geteuid()), ("gid", os.getegid())):
        if kind == "gid" and not everybody:
            _write(f"/proc/{pid}/setgroups", "deny")
        ids = (
            [f"{first} {first} {count}" for first, count in maps[kind]]
            if everybody
            else [f"{NOBODY} {user_id} 1"]
        )
        _write(f"/proc/{pid}/{kind}_map", "\n".join(ids) + "\n")


def _known_ids(kind: str) -> list[tuple[int, int]]:
    """Return (first, count) of the users or groups in this process's namespace.

    In a container root may be the only one.
    """
    with open(f"/proc/self/{kind}_map", encoding="ascii") as file:
        return [(int(first), int(count)) for first, _, count in map(str.split, file)]


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def build_root(readable: Sequence[str]) -> None:
    """Replace this process's root by ``readable`` and a few devices, all read-only. Raises OSError."""
    # A new root in memory, with the old one below it
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    base = next(path for path in ("/tmp", "/mnt", "/dev/shm", "/var") if os.path.isdir(path))
    syscalls.mount("tmpfs", base, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "size=1m,mode=0755")
    for name in ("new", "old"):
        os.mkdir(f"{base}/{name}")
    syscalls.pivot_root(base, f"{base}/old")
    os.chdir("/")
    syscalls.mount("tmpfs", "/new", "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "size=1m,mode=0755")
    # Bind what may be read, and drop the old root
    for path in sorted((*readable, *_DEVICES), key=len):
        _show(path)
    for path in WRITABLE:
        os.makedirs(f"/new{path}", exist_ok=True)
    syscalls.detach("/old")
    os.chdir("/new")
    syscalls.pivot_root(".", ".")
    syscalls.detach(".")
    os.chdir("/")
    syscalls.read_only("/")


def _show(path: str) -> None:
    """Bind ``path`` of the old root read-only into the new one; a relative link inside it stays a link."""
    source, target = f"/old{path}", f"/new{path}"
    if os.path.lexists(target) or not os.path.lexists(source):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(source):
        link = os.readlink(source)
        if not os.path.isabs(link) and ".." not in link.split("/"):
            os.symlink(link, target)
            return
        source = _followed(path)
    if os.path.isdir(source):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o444))
    syscalls.mount(source, target, flags=syscalls.MS_BIND | syscalls.MS_REC)
    syscalls.read_only(target)


def _followed(path: str) -> str:
    """Resolve a link of the old root inside that root."""
    for _ in range(40):
        if not os.path.islink(f"/old{path}"):
            return f"/old{path}"
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(f"/old{path}")))
    raise OSError(f"{path}: a circular link")


def private_files(readable: Sequence[str]) -> None:
    """Mount fresh, writable folders, bounded in bytes and in files; they end with their mount namespace.

    What is ``readable`` below them (a Python installed in /tmp) stays readable.
    """
    syscalls.unshare("mount", "pid", "ipc")
    below = [
        path
        for path in readable
        if path.startswith(tuple(f"{folder}/" for folder in WRITABLE)) and os.path.exists(path)
    ]
    copies = [syscalls.copy_of_mount(path) for path in below]
    for path in WRITABLE:
        syscalls.mount(
            "tmpfs",
            path,
            "tmpfs",
            syscalls.MS_NOSUID | syscalls.MS_NODEV,
            f"size={_OWN_BYTES},nr_inodes={_OWN_FILES},mode=0700,uid={NOBODY},gid={NOBODY}",
        )
    for path, copy in zip(below, copies, strict=True):
        os.makedirs(path, exist_ok=True)
        syscalls.put_mount(copy, path)
        os.close(copy)


def shut_in(limits: ProgramLimits, *, namespaces: bool) -> None:
    """Drop privileges and apply all limits: the last steps before a process becomes the program.

    Raises OSError.
    """
    os.setsid()
    os.umask(0o077)
    if namespaces and os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    if namespaces:
        syscalls.drop_capabilities()
    syscalls.no_new_privileges()
    os.chdir(WRITABLE[0] if namespaces else limits["folder"])
    if namespaces:
        restrict(("/",), (*WRITABLE, *_DEVICES))
    else:
        restrict(limits["readable"], _DEVICES)
    _limit(limits["seconds"], limits["memory"])
    seccomp.refuse_system_calls(outside=not namespaces)


def _limit(seconds: int, memory: int) -> None:
    for limit, value in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, _FILE_BYTES),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_NPROC, _THREADS),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, 64),
    ):
        resource.setrlimit(limit, (value, value))


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

    If the kernel's Landlock supports it, also block TCP connections and signals to outside processes.
    Returns False without Landlock. Needs no_new_privs. Raises OSError.
    """
    supported = version()
    if not supported:
        return False
    handled = _RIGHTS[max(v for v in _RIGHTS if v <= supported)]
    attributes = struct.pack("=QQQ", handled, _TCP, _SCOPES)[
        : 24 if supported >= 6 else 16 if supported >= 4 else 8
    ]
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
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        kept = rights if stat.S_ISDIR(os.fstat(descriptor).st_mode) else rights & _OF_FILES
        rule = ctypes.create_string_buffer(struct.pack("=Qi", kept, descriptor), 12)
        checked(syscall(LANDLOCK_ADD_RULE, ruleset, 1, ctypes.byref(rule), 0), f"landlock {path}")
    finally:
        os.close(descriptor)
