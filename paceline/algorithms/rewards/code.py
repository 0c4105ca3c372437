"""A reward that runs code: the answer's program with the row's tests, in a child with limits and without a network.

Off unless ``training.rollout.allow_code_execution`` is set. The child gets an empty environment, a directory of its own that is deleted afterwards, limits on
processor time, memory, file size, open files and processes, no new privileges, and a network namespace of its own without any interface. It can
still read what the user who trains may read: run it where that is nothing of value.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from paceline.algorithms.rewards.sample import Sample
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError

_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
# What the child does before it becomes the program; what keeps it from being shut in it says through a pipe that the program does not have. -I: neither the user's site packages nor the current directory are searched.
_SHUT_IN = """
import ctypes, os, resource, signal, sys
seconds, memory, program, tell = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
os.set_inheritable(tell, False)
libc = ctypes.CDLL(None, use_errno=True)
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
try:
    if libc.unshare(NEWUSER | NEWPID | NEWNET):
        raise OSError(ctypes.get_errno(), "unshare: " + os.strerror(ctypes.get_errno()))
    inner = os.fork()  # the first process of the new namespace: all others in it die with it
    if inner:
        os.close(tell)
        _, status = os.waitpid(inner, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 127)
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)
    if libc.prctl(38, 1, 0, 0, 0):
        raise OSError("no_new_privs")
    for limit, value in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, 1 << 20),
                         (resource.RLIMIT_NOFILE, 64), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_NPROC, 0)):
        resource.setrlimit(limit, (value, value))
except (AttributeError, OSError, ValueError) as error:
    os.write(tell, str(error).encode()[:500])
    os._exit(1)
os.execve(sys.executable, [sys.executable, "-I", program], {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"})
"""


def program_of(completion: str) -> str:
    """The last fenced block of Python in an answer, or all of it when it has none."""
    blocks = _FENCE.findall(completion)
    return str(blocks[-1] if blocks else completion)


def run_code(sample: Sample, *, tests: str = "tests", seconds: int = 10, memory_mb: int = 512) -> float:
    """1 when the program of the answer followed by the row's ``tests`` column ends with exit status 0 within ``seconds``; else 0.

    Raises KeyError when the row has no tests, ConfigError when the child cannot be shut in (nothing has run then).
    """
    text = f"{program_of(sample.completion)}\n\n{sample.columns[tests]}\n"
    with tempfile.TemporaryDirectory(prefix="paceline-code-") as folder:
        program = Path(folder) / "program.py"
        program.write_text(text, encoding="utf-8", errors="replace")
        return float(_run(folder, program, seconds, memory_mb << 20) == 0)


def check_isolation() -> None:
    """Raises ConfigError when code cannot be shut in on this machine."""
    with tempfile.TemporaryDirectory(prefix="paceline-code-") as folder:
        program = Path(folder) / "program.py"
        program.write_text("raise SystemExit(0)\n", encoding="utf-8")
        _run(folder, program, 10, 512 << 20)


def _run(folder: str, program: Path, seconds: int, memory_bytes: int) -> int:
    """Exit status of the shut-in program; -SIGKILL when it ran too long. Raises ConfigError when it could not be shut in."""
    hears, tells = os.pipe()
    try:
        child = subprocess.Popen(
            [sys.executable, "-I", "-c", _SHUT_IN, str(seconds), str(memory_bytes), str(program), str(tells)],
            cwd=folder,
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(tells,),
            start_new_session=True,
        )
        try:
            status = child.wait(timeout=seconds + 5)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        os.set_blocking(hears, False)
        with contextlib.suppress(BlockingIOError):
            if words := os.read(hears, 500):
                raise _refused(words.decode(errors="replace"))
    finally:
        os.close(hears)
        os.close(tells)
    return status


def _refused(words: str) -> ConfigError:
    what = "code cannot be shut in on this machine, so none is run"
    hint = "a Linux kernel that lets users make namespaces (user, process, network), or a reward that runs no code"
    return ConfigError(Diagnostic("rewards.no_isolation", what, "training.rollout.rewards", words, hint))
