"""The sandbox's third layer: a seccomp filter (classic BPF) against system calls that could lead out of the
sandbox."""

from __future__ import annotations

import ctypes
import os
import struct

from paceline.algorithms.rewards.sandbox.syscalls import PR_SET_SECCOMP, checked, machine, prctl

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of the tables below, AUDIT_ARCH
_NONE = -1
# name: (x86_64, aarch64); asm/unistd_64.h, asm-generic/unistd.h
REFUSED = {
    # other processes and executables; threads use clone
    "fork": (57, _NONE),
    "vfork": (58, _NONE),
    "execve": (59, 221),
    "execveat": (322, 281),
    "ptrace": (101, 117),
    "kcmp": (312, 272),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "sched_setaffinity": (203, 122),
    "setpriority": (141, 140),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    # namespaces and mounts
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    # memory that outlives a process or that no limit covers
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    # parts of the kernel with a history of escapes
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "syslog": (103, 116),
    "personality": (135, 92),
    "vhangup": (153, 58),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "iopl": (172, _NONE),
    "ioperm": (173, _NONE),
    "modify_ldt": (154, _NONE),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
}
# … and what namespaces make harmless: rejected without them
REFUSED_OUTSIDE = {
    "socket": (41, 198),
    "chmod": (90, _NONE),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, _NONE),
    "fchown": (93, 55),
    "lchown": (94, _NONE),
    "fchownat": (260, 54),
    "utime": (132, _NONE),
    "utimes": (235, _NONE),
    "futimesat": (261, _NONE),
    "utimensat": (280, 88),
}
# Allowed only on the process itself (the first argument; 0 where that means the caller)
ABOUT_SELF = {"kill": (62, 129), "tgkill": (234, 131), "prlimit64": (302, 261)}
# unix, inet, inet6, netlink: those that a network namespace shuts in (vsock is not)
SOCKET, _FAMILIES = ((41, 198), (1, 2, 10, 16))
CLONE, CLONE3 = (56, 220), (435, 435)
_CLONE_THREAD = 0x00010000
_X32 = 0x40000000

_ALLOW, _KILL, _REFUSE, _UNKNOWN = 0x7FFF0000, 0x80000000, 0x00050000 | 1, 0x00050000 | 38  # EPERM, ENOSYS
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT = 0, 4, 16


def filter_program(pid: int, *, outside: bool) -> list[tuple[int, int, int, int]]:
    """Return the BPF filter as (code, jump if true, jump if false, k), for the process ``pid``.

    ``outside``: the process has no namespaces of its own.
    """
    column, arch = _MACHINES[machine()]
    refused = {**REFUSED, **(REFUSED_OUTSIDE if outside else {})}
    # Kill on a foreign architecture, then load the number of the call
    lines = [(_LOAD, 0, 0, _ARCH_AT), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER_AT)]
    if column == 0:  # the same calls once more under other numbers
        lines += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    for numbers in refused.values():
        if numbers[column] != _NONE:
            lines += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _REFUSE)]
    # clone3 has its flags in memory, so libc must fall back to clone
    lines += [(_EQUAL, 0, 1, CLONE3[column]), (_RETURN, 0, 0, _UNKNOWN)]
    lines += [(_EQUAL, 0, 4, CLONE[column]), (_LOAD, 0, 0, _FIRST_ARGUMENT_AT)]
    lines += [(_ANY_BIT, 0, 1, _CLONE_THREAD), (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    # Sockets of the families that a network namespace covers
    lines += [(_EQUAL, 0, 3 + len(_FAMILIES), SOCKET[column]), (_LOAD, 0, 0, _FIRST_ARGUMENT_AT)]
    lines += [(_EQUAL, len(_FAMILIES) - i, 0, family) for i, family in enumerate(_FAMILIES)]
    lines += [(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    for name, numbers in ABOUT_SELF.items():
        lines += [(_EQUAL, 0, 5, numbers[column]), (_LOAD, 0, 0, _FIRST_ARGUMENT_AT)]
        lines += [(_EQUAL, 2, 0, pid), (_EQUAL, 1, 0, 0 if name == "prlimit64" else pid)]
        lines += [(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    return [*lines, (_RETURN, 0, 0, _ALLOW)]


def refuse_system_calls(*, outside: bool) -> None:
    """Install the filter for this process and its threads. Needs no_new_privs. Raises OSError."""
    lines = filter_program(os.getpid(), outside=outside)
    packed = ctypes.create_string_buffer(
        b"".join(struct.pack("=HBBI", *line) for line in lines), 8 * len(lines)
    )
    program = ctypes.create_string_buffer(struct.pack("@HP", len(lines), ctypes.addressof(packed)), 16)
    checked(prctl(PR_SET_SECCOMP, 2, ctypes.addressof(program)), "seccomp")
