"""Programs that try to harm the machine they run on. ``reached`` in what one prints: it got where it may not.

As a program (``python code_attacks.py FOLDER``) it runs all of them as the user who calls it and prints what
came of them, as JSON; only the standard library and the sandbox are imported, so that any Python of the
machine can.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

LIBC = "import ctypes, os, sys\nlibc = ctypes.CDLL(None, use_errno=True)\nS = libc.syscall\n"
FILL = (
    "import os\nn = 0\ntry:\n    while n < 100000:\n        {0}\n        n += 1\nexcept OSError: pass\nassert"
    " n > {1}, n\nprint('reached')"
)
# {canary}: a folder of this user with a file `secret`, `tool` (executable) and a folder `inner`; {pid}: a
# process of this user; {port}: it listens on this machine
ATTACKS = {
    "overwrite": "open('{canary}/secret', 'w').write('x')",
    "append": "open('{canary}/secret', 'a').write('x')",
    "truncate": "import os; os.truncate('{canary}/secret', 0)",
    "create": "open('{canary}/new', 'x')",
    "delete": "import os; os.unlink('{canary}/secret')",
    "delete_tree": "import shutil; shutil.rmtree('{canary}')",
    "rename": "import os; os.rename('{canary}/secret', '{canary}/inner/secret')",
    "chmod": "import os; os.chmod('{canary}/secret', 0o777)",
    "chown": "import os; os.chown('{canary}/secret', 65534, 65534)",
    "touch": "import os; os.utime('{canary}/secret', (0, 0))",
    "hard_link": "import os; os.link('{canary}/secret', '/tmp/mine'); open('/tmp/mine', 'w')",
    "symlink_out": "import os; os.symlink('{canary}/secret', '/tmp/l'); open('/tmp/l', 'w')",
    "up_and_out": "import os; os.chdir('/tmp'); open('../' * 20 + '{canary}/secret', 'w')",
    "read": "assert 'kept' in open('{canary}/secret').read()",
    "read_home": (
        "import os; assert [p for p in ('.ssh', '.bashrc', '.profile', '.cache', '.config') if"
        " os.path.exists(os.path.join('{home}', p))]"
    ),
    "read_shadow": "open('/etc/shadow').read()",
    "read_passwd": "open('/etc/passwd').read()",
    "list_home": "import os; assert set(os.listdir('{home}')) - {{'.pyenv', '.local', '.venv', 'venv'}}",
    "list_var": "import os; os.listdir('/var')",
    "list_tmp_of_others": (
        "import os, sys; assert set(os.listdir('/tmp')) - {{p.split('/')[2] for p in sys.path if"
        " p.startswith('/tmp/')}}"
    ),
    "write_root": "open('/x', 'w')",
    "write_usr": "open('/usr/x', 'w')",
    "write_usr_lib": "import os; open(os.path.dirname(os.__file__) + '/x', 'w')",
    "write_site_packages": "import sys; open([p for p in sys.path if 'packages' in p][0] + '/x.pth', 'w')",
    "overwrite_python": "import os; open(os.__file__, 'a')",
    "make_device": "import os; os.mknod('/tmp/d', 0o60666, os.makedev(8, 0)); open('/tmp/d', 'rb').read(1)",
    "remount": LIBC + "assert libc.mount(None, b'/', None, 32, None) == 0",
    "mount_over": LIBC + "assert libc.mount(b'none', b'/usr', b'tmpfs', 0, None) == 0",
    "unmount": LIBC + "assert libc.umount2(b'/usr', 2) == 0",
    "chroot": "import os; os.chroot('/tmp')",
    "new_user_namespace": LIBC + "assert libc.unshare(0x10000000) == 0",
    "new_mount_namespace": LIBC + "assert libc.unshare(0x20000) == 0",
    "clone_user_namespace": (
        LIBC + "r = S(56, 0x10000000 | 17, 0, 0, 0, 0)\nif r == 0: os._exit(0)\nassert r > 0"
    ),
    "clone3": (
        LIBC
        + "a = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17)\nr = S(435, ctypes.byref(a), 88)\nif r == 0:"
        " os._exit(0)\nassert r > 0"
    ),
    "fork": "import os\nif os.fork() == 0: os._exit(0)",
    "spawn": "import os; os.posix_spawn('/bin/true', ['true'], {{}})",
    "subprocess": "import subprocess; subprocess.run(['/bin/true'], check=True)",
    "exec": "import os; os.execv('/bin/echo', ['echo', 'reached'])",
    "fork_bomb": "import os\nwhile True: os.fork()",
    "kill_parent": "import os; os.kill({pid}, 9)",
    "kill_all": "import os; os.kill(-1, 9)",
    "kill_group": "import os; os.kill(0, 9)",
    "pidfd": "import os, signal; signal.pidfd_send_signal(os.pidfd_open({pid}), 9)",
    "queue_signal": LIBC + "i = (ctypes.c_int * 32)(9, 0, -1)\nassert S(129, {pid}, 9, ctypes.byref(i)) == 0",
    "limit_another": "import resource; resource.prlimit({pid}, resource.RLIMIT_CPU, (1, 1))",
    "trace": LIBC + "assert libc.ptrace(16, {pid}, 0, 0) == 0",
    "read_memory": (
        LIBC + "b = ctypes.create_string_buffer(8); v = (ctypes.c_uint64 * 2)(ctypes.addressof(b), 8)\nassert"
        " S(310, {pid}, ctypes.byref(v), 1, ctypes.byref(v), 1, 0) > 0"
    ),
    "proc": "import os; assert [p for p in os.listdir('/proc') if p.isdigit() and p != '1']",
    "proc_environ": "open('/proc/{pid}/environ').read()",
    "sysctl": "open('/proc/sys/kernel/hostname', 'w').write('x')",
    "cgroups": "import os; os.listdir('/sys/fs/cgroup')",
    "hostname": "import socket; socket.sethostname('reached')",
    "host_port": "import socket; socket.create_connection(('127.0.0.1', {port}), 2)",
    "internet": "import socket; s = socket.socket(); s.settimeout(2); s.connect(('1.1.1.1', 53))",
    "udp": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('1.1.1.1', 53))",
    "vsock": "import socket; s = socket.socket(40, socket.SOCK_STREAM); s.settimeout(2); s.connect((2, 1))",
    "raw_packets": "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "kernel_crypto": "import socket; socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)",
    "abstract_socket": "import socket; s = socket.socket(socket.AF_UNIX); s.connect('\\0{abstract}')",
    "path_socket": "import socket; s = socket.socket(socket.AF_UNIX); s.connect('{canary}/socket')",
    "bring_up_loopback": (
        "import fcntl, socket, struct; fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh22x', b'lo', 1 |"
        " 64))"
    ),
    "keyring": LIBC + "assert S(248, b'user', b'paceline', b'x', 1, -4) > 0",
    "bpf": LIBC + "assert S(321, 0, ctypes.create_string_buffer(128), 128) >= 0",
    "userfaultfd": LIBC + "assert S(323, 0) >= 0",
    "io_uring": LIBC + "assert S(425, 8, ctypes.create_string_buffer(256)) >= 0",
    "perf": LIBC + "assert S(298, ctypes.create_string_buffer(256), 0, -1, -1, 0) >= 0",
    "shared_memory": LIBC + "assert S(29, 0, 1 << 30, 0o1600) >= 0",
    "memory_file": "import os\nf = os.memfd_create('x')\nos.ftruncate(f, 1 << 30)",
    "module": LIBC + "assert S(175, b'', 0, b'') == 0",
    "clock": "import time; time.clock_settime(time.CLOCK_REALTIME, 0)",
    "real_time": "import os; os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
    "high_priority": "import os; os.setpriority(os.PRIO_PROCESS, 0, -10)",
    "raise_limits": "import resource; resource.setrlimit(resource.RLIMIT_CPU, (1000, 1000))",
    "become_root": "import os; os.setuid(0); assert os.getuid() != 65534",
    "capabilities": (
        LIBC + "h = (ctypes.c_uint32 * 2)(0x20080522, 0); d = (ctypes.c_uint32 *"
        " 6)()\nlibc.capget(ctypes.byref(h), ctypes.byref(d)); assert d[0] or d[1] or d[3] or d[4]"
    ),
    "privileges": LIBC + "assert libc.prctl(39, 0, 0, 0, 0) != 1",
    "groups": "import os; assert set(os.getgroups()) - {{65534}}",
    "terminal": "open('/dev/tty', 'w')",
    "disk": "import os; open('/dev/vda', 'rb').read(1)",
    "environment": (
        "import os; assert [n for n in os.environ if n in ('A_TOKEN', 'USER', 'LOGNAME', 'PYTHONPATH')]"
    ),
    "open_files": (
        "import os\nfor n in range(3, 1024):\n    try: os.fstat(n); print('reached', n)\n    except OSError:"
        " pass\nraise SystemExit(1)"
    ),
    "one_big_file": "open('big', 'wb').write(b'x' * (2 << 20))",
    "many_bytes": FILL.format("open(f'/tmp/{{n}}', 'wb').write(b'x' * (1 << 20))", 64),
    "many_files": FILL.format("open(f'/tmp/{{n}}', 'x').close()", 1000),
    "many_folders": FILL.format("os.mkdir(f'/dev/shm/{{n}}')", 1000),
    "many_links": FILL.format("os.symlink('x' * 200, f'/tmp/{{n}}')", 1000),
    "much_memory": "x = bytearray(1 << 30)",
    "much_memory_in_threads": "import mmap\nx = [mmap.mmap(-1, 1 << 26) for _ in range(20)]",
    "many_threads": (
        "import threading, time\nthreading.stack_size(1 << 15)\nfor _ in range(500):"
        " threading.Thread(target=time.sleep, args=(3,), daemon=True).start()"
    ),
    "many_open_files": "import os\nx = [os.open('/dev/null', 0) for _ in range(200)]",
    "core_dump": "import os, resource\nresource.setrlimit(resource.RLIMIT_CORE, (-1, -1)); os.abort()",
}
REACHED = "reached"


def plant(folder: Path) -> Path:
    """Something to be harmed."""
    canary = folder / "canary"
    (canary / "inner").mkdir(parents=True)
    (canary / "secret").write_text("kept")
    (canary / "secret").chmod(0o600)
    (canary / "tool").write_text("#!/bin/sh\n")
    (canary / "tool").chmod(0o700)
    return canary


def fingerprint(folder: Path) -> str:
    """Of names, contents, modes, owners and times of all that lies in ``folder``."""
    found = hashlib.sha256()
    for path in sorted([folder, *folder.rglob("*")]):
        info = path.lstat()
        found.update(
            f"{path} {info.st_mode} {info.st_uid} {info.st_gid} {info.st_mtime_ns} {info.st_nlink}".encode()
        )
        found.update(path.read_bytes() if path.is_file() else b"")
    return found.hexdigest()


def attack(folder: Path, pid: int, port: int, abstract: str, names: list[str]) -> dict[str, str]:
    """What each attack says, where it ended other than in a refusal."""
    from paceline.algorithms.rewards.sandbox.client import Sandbox

    said = {}
    values = {
        "canary": folder / "canary",
        "home": Path.home(),
        "pid": pid,
        "port": port,
        "abstract": abstract,
    }
    with Sandbox() as sandbox:
        for name in names:
            program = ATTACKS[name].format(**values) + "\nprint('reached')"
            ended = sandbox.output(program, "", seconds=1, memory_bytes=512 << 20)
            if REACHED in ended.output or ended.status == 0:
                said[name] = f"{ended.status} {ended.output[:200]}"
    return said


if __name__ == "__main__":
    place = Path(sys.argv[1])
    plant(place)
    before = fingerprint(place)
    told = attack(place, int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], list(ATTACKS))
    print(json.dumps({"uid": os.getuid(), "said": told, "unchanged": fingerprint(place) == before}))
