"""Client of the sandbox in the training process: starts a server that runs one program at a time.

with Sandbox() as sandbox:
    sandbox.passes(program, tests, seconds=10, memory_bytes=512 << 20)
    sandbox.output(program, "3 4\\n", seconds=10, memory_bytes=512 << 20)
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from paceline.algorithms.rewards.sandbox.server import MAX_MESSAGE, ProgramRequest
from paceline.core.package import ROOT

# Preload the modules that most programs import; remove the package from the path.
_BOOT = """
import sys
sys.path.insert(0, sys.argv[2])
from paceline.algorithms.rewards.sandbox import server
del sys.path[0]
import bisect, collections, copy, datetime, decimal, fractions, functools, heapq, itertools, json, math
import operator, random, re, string, typing, unittest
server.main(int(sys.argv[1]))
"""
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LC_ALL": "C.UTF-8",
    "HOME": "/tmp",
    "PYTHONHASHSEED": "0",  # reproducible output
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/nix/store",
    "/gnu/store",
)
_File = io.FileIO | socket.socket
_GRACE = 5.0  # seconds of wall time that a program may take beyond its CPU time
_START_SECONDS = 60.0


class SandboxUnavailable(Exception):
    """This machine has no sandbox; nothing was run."""


class UnsuitableTests(Exception):
    """The tests cannot be run with the program in another process."""


@dataclass(frozen=True)
class ProgramResult:
    """How a program ended: its exit status (negative: killed by that signal) and its standard output."""

    status: int
    output: str


def readable_folders() -> list[str]:
    """Return the folders that a program may read: the system's and this Python's.

    Folders of users and of the run are left out; of /etc it has only what the system's libraries need.
    """
    paths = sysconfig.get_paths()
    python = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    python |= {os.path.join(prefix, "lib") for prefix in (sys.base_prefix, sys.base_exec_prefix)}
    outermost: list[str] = []
    for path in sorted(os.path.normpath(p) for p in (*_SYSTEM, *python) if p):
        if not any(path == folder or path.startswith(folder + "/") for folder in outermost):
            outermost.append(path)
    return outermost


class Sandbox:
    """Runs one program at a time, with its tests in a separate process.

    ``namespaces=False`` omits the walls that need namespaces. Raises SandboxUnavailable if the kernel does
    not support the sandbox.
    """

    def __init__(self, *, namespaces: bool = True) -> None:
        if sys.platform != "linux":
            raise SandboxUnavailable(f"namespaces exist on Linux only; this is {sys.platform}")
        # the server removes it
        self._folder = "" if namespaces else tempfile.mkdtemp(prefix="paceline-code-")
        self._readable = readable_folders()
        # The server gets a clean environment and one inherited socket; closing ours ends it
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._peer = mine
        with theirs:
            server = subprocess.Popen(
                # no user site, no folder of the script on the path, no bytecode files
                [sys.executable, "-s", "-P", "-B", "-c", _BOOT, str(theirs.fileno()), str(ROOT)],
                cwd="/",
                env=_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                # a Ctrl-C in the run's terminal must not reach it
                start_new_session=True,
            )
        self.close = weakref.finalize(self, _end, server, mine)
        try:
            spec = {"namespaces": namespaces, "readable": self._readable, "folder": self._folder}
            mine.send(json.dumps(spec).encode())
            mine.settimeout(_START_SECONDS)
            hello = json.loads(mine.recv(MAX_MESSAGE) or b'{"refused": "the server of the sandbox ended"}')
        except OSError as error:
            hello = {"refused": f"the sandbox server: {error}"}
        if "refused" in hello:
            self.close()
            raise SandboxUnavailable(str(hello["refused"]))
        self.landlock = int(hello["landlock"])

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def passes(self, program: str, tests: str, *, seconds: int, memory_bytes: int) -> bool:
        """Whether ``tests``, run in a separate process, finish without failure; they can call ``program``'s
        functions.

        Raises UnsuitableTests if the tests cannot be used, SandboxUnavailable if the sandbox fails.
        """
        limits = {"seconds": seconds, "memory": memory_bytes}
        reader, writer = _pipe()
        first, second = socket.socketpair()
        with (
            reader,
            writer,
            first,
            second,
            self._start("program", program, limits, {"channel": first}),
            self._start("judge", tests, limits, {"channel": second, "verdict": writer}) as judge,
        ):
            for end in (first, second, writer):  # only the child processes keep them
                end.close()
            judge.wait()
            verdict = json.loads(reader.read() or b"{}")
        if "unsuitable" in verdict:
            raise UnsuitableTests(str(verdict["unsuitable"]))
        return "passed" in verdict

    def output(
        self, program: str, given: str, *, seconds: int, memory_bytes: int, longest: int = 1 << 24
    ) -> ProgramResult:
        """Return what ``program`` writes when it reads ``given``; it is killed above ``longest`` bytes.

        Raises SandboxUnavailable.
        """
        limits = {"seconds": seconds, "memory": memory_bytes}
        hears, says = _pipe()
        with (
            hears,
            says,
            _in_memory(given) as source,
            self._start("script", program, limits, {"stdin": source, "stdout": says}) as run,
        ):
            says.close()
            written = _read_all(hears, longest, time.monotonic() + seconds + _GRACE)
            if written is not None:
                run.wait()
        return ProgramResult(
            -signal.SIGKILL if written is None else run.status, (written or b"").decode("utf-8", "replace")
        )

    def _start(self, role: str, text: str, limits: Mapping[str, int], files: Mapping[str, _File]) -> _Running:
        """Start one process through the server. Raises SandboxUnavailable."""
        life, alive = _pipe()
        hears, says = _pipe()
        with life, says, _in_memory(text) as source:
            passed = {"text": source, "life": life, "status": says, **files}
            request = ProgramRequest(
                role=role,
                files=list(passed),
                wall=limits["seconds"] + _GRACE,
                seconds=limits["seconds"],
                memory=limits["memory"],
                folder=self._folder,
                readable=self._readable,
            )
            try:
                socket.send_fds(
                    self._peer, [json.dumps(request).encode()], [file.fileno() for file in passed.values()]
                )
            except OSError as error:
                alive.close()
                hears.close()
                raise SandboxUnavailable(f"the sandbox server has ended: {error}") from error
        return _Running(alive, hears, limits["seconds"] + _GRACE + _START_SECONDS)


class _Running:
    """A process in the sandbox; closing this kills it and all its children."""

    def __init__(self, alive: io.FileIO, hears: io.FileIO, patience: float) -> None:
        self._alive, self._hears, self._patience = alive, hears, patience
        self.status = -signal.SIGKILL

    def __enter__(self) -> _Running:
        return self

    def __exit__(self, *exc: object) -> None:
        with self._hears:
            if not self._alive.closed:
                self._alive.close()
                self._listen()

    def wait(self) -> None:
        """Wait for the end of the process.

        Raises SandboxUnavailable if it could not be isolated; then it did not run.
        """
        self._listen()
        self._alive.close()

    def _listen(self) -> None:
        words = _read_all(self._hears, MAX_MESSAGE, time.monotonic() + self._patience)
        for line in (words or b'{"refused": "the keeper of a program gave no answer"}').splitlines():
            reply = json.loads(line)
            if "refused" in reply:
                raise SandboxUnavailable(str(reply["refused"]))
            self.status = int(reply["status"])


def _pipe() -> tuple[io.FileIO, io.FileIO]:
    """Return (read end, write end)."""
    hears, says = os.pipe()
    return io.FileIO(hears, "rb"), io.FileIO(says, "wb")


def _read_all(file: io.FileIO, longest: int, until: float) -> bytes | None:
    """Read a pipe to its end; None if it is longer than ``longest`` or has no end by ``until``
    (time.monotonic).
    """
    poll = select.poll()
    poll.register(file, select.POLLIN)
    data = bytearray()
    while len(data) <= longest and (left := until - time.monotonic()) > 0 and poll.poll(left * 1000):
        part = file.read(1 << 16)
        if not part:
            return bytes(data)
        data += part
    return None


@contextlib.contextmanager
def _in_memory(text: str) -> Iterator[io.FileIO]:
    """Open a read-only file that holds ``text``."""
    with open(os.memfd_create("text", os.MFD_CLOEXEC), "wb") as file:
        file.write(text.encode("utf-8", "replace"))
        file.flush()
        again = io.FileIO(os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY | os.O_CLOEXEC), "rb")
    with again:
        yield again


def _end(server: subprocess.Popen[bytes], peer: socket.socket) -> None:
    """Close the connection, which ends the server and all its namespaces; kill it if it does not end."""
    peer.close()
    try:
        server.wait(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
