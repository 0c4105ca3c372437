"""Linux system calls that Python does not wrap."""

from __future__ import annotations

import ctypes
import os
import platform

# sched.h
NEW_NAMESPACES = {
    "user": 0x10000000,
    "pid": 0x20000000,
    "mount": 0x00020000,
    "net": 0x40000000,
    "ipc": 0x08000000,
    "uts": 0x04000000,
}
# mount.h
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_ATTR_RDONLY, _ATTR_NOSUID = 1, 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_OPEN_TREE_CLONE, _FROM_EMPTY_PATH = 1, 4
# prctl.h
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_CAP_AMBIENT = 1, 24, 38, 22, 47
_CAPABILITY_VERSION = 0x20080522
_LAST_CAPABILITY = 63
# System calls that the C library may not wrap, with the same numbers on x86_64 and aarch64
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF, _MOUNT_SETATTR = 444, 445, 446, 442
_OPEN_TREE, _MOVE_MOUNT = 428, 429
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
CAPSET = {"x86_64": 126, "aarch64": 91}

libc = ctypes.CDLL(None, use_errno=True)


def machine() -> str:
    """Return x86_64 or aarch64. Raises OSError on others, whose system call numbers are not known here."""
    name = platform.machine()
    if name not in PIVOT_ROOT:
        raise OSError(
            f"the system calls of this processor are not known ({name}; only x86_64 and aarch64 are)"
        )
    return name


def checked(result: int, what: str) -> int:
    """Return ``result`` of a C library call. Raises OSError beginning with ``what`` if it is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(number: int, *arguments: object) -> int:
    """Make a system call by number; returns -1 and sets ``ctypes.get_errno()`` on failure."""
    return libc.syscall(ctypes.c_long(number), *arguments)


def prctl(option: int, *arguments: int) -> int:
    values = [ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]]
    return libc.prctl(option, *values)


def unshare(*names: str) -> None:
    """Create namespaces for this process; a new pid namespace applies to its next child."""
    checked(libc.unshare(sum(NEW_NAMESPACES[name] for name in names)), f"unshare ({', '.join(names)})")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    texts = [text.encode() if text else None for text in (source, target, kind, options)]
    done = libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])
    checked(done, f"mount {kind or 'bind'} at {target}")


def read_only(target: str) -> None:
    """Make the mount at ``target``, and all below it, read-only and nosuid."""
    attributes = (ctypes.c_uint64 * 4)(_ATTR_RDONLY | _ATTR_NOSUID, 0, 0, 0)
    done = syscall(_MOUNT_SETATTR, _AT_FDCWD, target.encode(), _AT_RECURSIVE, ctypes.byref(attributes), 32)
    checked(done, f"mount_setattr {target} (Linux 5.12 and newer)")


def copy_of_mount(path: str) -> int:
    """Return an open file with a copy of the mount at ``path`` and all below it, for ``put_mount``."""
    return checked(
        syscall(_OPEN_TREE, _AT_FDCWD, path.encode(), _OPEN_TREE_CLONE | _AT_RECURSIVE | os.O_CLOEXEC),
        f"open_tree {path}",
    )


def put_mount(copy: int, target: str) -> None:
    checked(
        syscall(_MOVE_MOUNT, copy, b"", _AT_FDCWD, target.encode(), _FROM_EMPTY_PATH), f"move_mount {target}"
    )


def pivot_root(new: str, old: str) -> None:
    checked(syscall(PIVOT_ROOT[machine()], new.encode(), old.encode()), "pivot_root")


def detach(target: str) -> None:
    checked(libc.umount2(target.encode(), _MNT_DETACH), f"umount {target}")


def drop_capabilities() -> None:
    """Drop all capabilities for good."""
    for number in range(_LAST_CAPABILITY + 1):
        if prctl(PR_CAPBSET_DROP, number) < 0:  # beyond the kernel's last capability, or not permitted
            break
    prctl(PR_CAP_AMBIENT, 4)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    nothing = (ctypes.c_uint32 * 6)()
    checked(syscall(CAPSET[machine()], ctypes.byref(header), ctypes.byref(nothing)), "capset")


def no_new_privileges() -> None:
    checked(prctl(PR_SET_NO_NEW_PRIVS, 1), "no_new_privs")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; exit now if the parent is no longer ``parent``.

    0 is a parent outside this pid namespace.
    """
    checked(prctl(PR_SET_PDEATHSIG, 9), "pdeathsig")
    if os.getppid() != parent:
        os._exit(1)
