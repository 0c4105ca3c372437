"""A spare process: it has imported what a rank needs, and forks the ranks of a start that follows.

Python's and torch's imports take seconds, and no process of an ended run may be used again. What is only
imported may: the spare has no thread that a fork would lose and has not touched a device.

Each rank is forked twice, the process between ends, and the orphan is the launcher's. That one waits for
its end, and the kernel ends it with the launcher, as any rank. The spare ends when the launcher's end of the
socket closes. Linux only; elsewhere, and before the spare is ready, ranks start as at first.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from typing import Protocol

from paceline.core.json_types import Json
from paceline.launch.process_spec import WORKER_MODULE, LaunchSpec, import_path, module_argv
from paceline.launch.processes import MARK, die_with_parent, own_bytes, write_environment

MODULE = "paceline.training.spare"
LENGTH = 8  # bytes of a message's length, and of the answer
READY = b"+"
_CUDA = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}  # torch asks the driver's library, which a fork survives
_PLACE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SUBREAPER = 36  # linux/prctl.h: PR_SET_CHILD_SUBREAPER
_ANSWER_SECONDS = 30.0
_IMPORT_SECONDS = 30.0  # ranks of their own would begin later


@dataclass(frozen=True)
class ForkRequest:
    """What the spare is asked for: a module's ``main`` with these arguments; ``parent``: who asks."""

    module: str
    arguments: list[str | list[str]]
    environ: dict[str, str]
    parent: int


class Process(Protocol):
    """What a supervisor asks of a process, as ``subprocess.Popen`` answers it."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self) -> int: ...


class Forked:
    """A child of this process that another one has forked."""

    def __init__(self, pid: int) -> None:
        self.pid, self._code = pid, None if pid > 0 else 0

    def poll(self) -> int | None:
        """Return its exit code, or -N after signal N; None while it runs."""
        return self._ended(os.WNOHANG)

    def wait(self) -> int:
        """Wait for its end; return as ``poll``."""
        code = self._ended(0)
        assert code is not None
        return code

    def _ended(self, options: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


class Spare:
    """One for the node. ``modules``: what its ranks have imported; ``output``: of the ranks, None: ours."""

    def __init__(self, environ: Mapping[str, str], modules: Sequence[str], output: int | None) -> None:
        self._link, theirs = socket.socketpair()
        # A rank's place comes with each fork; the spare itself has none.
        variables = {name: value for name, value in environ.items() if name not in _PLACE}
        with theirs:
            self._process = subprocess.Popen(
                module_argv(MODULE, str(theirs.fileno())),
                # room in its environment for the mark of a rank's start, by which what is left is found
                env={**variables, **import_path(environ), **_CUDA, MARK: "0" * 32},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=die_with_parent(),  # noqa: PLW1509 - one prctl call; no lock is taken
            )
        self._output, self._ready = output, False
        with suppress(OSError):  # it has ended: it will never be ready
            self._send(modules, [])

    def ready(self, seconds: float = 0.0) -> bool:
        """Whether it has imported everything and can fork; wait for it so long."""
        if not self._ready:
            self._link.settimeout(seconds)
            with suppress(OSError):
                self._ready = self._link.recv(1) == READY
        return self._ready

    def gone(self) -> bool:
        """Whether it has ended, as where imports have left threads."""
        return self._process.poll() is not None

    def bytes(self) -> int:
        """Return the memory that it shares with no other process."""
        return own_bytes(self._process.pid)

    def fork(
        self, module: str, arguments: list[str | list[str]], environ: Mapping[str, str]
    ) -> Forked | None:
        """Start a process that calls ``main`` of a module; None if the spare is gone."""
        request = astuple(ForkRequest(module, arguments, dict(environ), os.getpid()))
        streams = [1, 2] if self._output is None else [self._output] * 2
        prctl = ctypes.CDLL(None).prctl
        self._link.settimeout(_ANSWER_SECONDS)
        # Orphans of descendants then become this process's children, so only while the fork is made.
        prctl(_SUBREAPER, 1, 0, 0, 0)
        try:
            self._send(request, streams)
            answer = self._link.recv(LENGTH, socket.MSG_WAITALL)
        except OSError:
            answer = b""
        finally:
            prctl(_SUBREAPER, 0, 0, 0, 0)
        return Forked(int.from_bytes(answer, "big")) if len(answer) == LENGTH else None

    def _send(self, message: Sequence[Json], streams: Sequence[int]) -> None:
        data = json.dumps(message).encode()
        # The length first, with the descriptors beside it (SCM_RIGHTS).
        socket.send_fds(self._link, [len(data).to_bytes(LENGTH, "big")], streams)
        self._link.sendall(data)

    def close(self) -> None:
        """End it; the ranks that it has forked stay."""
        self._link.close()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()


class Spares:
    """The spare of a launcher that may start its ranks again: begun once they have said what they import.

    ``wanted``: whether there is to be one; ``settings``: variables that ranks set before they import torch.
    """

    def __init__(self, wanted: bool, settings: Mapping[str, str] | None = None) -> None:
        self._wanted = wanted and sys.platform == "linux"  # which hands an orphan to who asked for it
        self._settings = settings or {}
        self._spare: Spare | None = None
        self._reported = False

    def tend(self, environ: Mapping[str, str], modules: Sequence[str], output: int | None) -> str:
        """Begin it once the ``modules`` are known; return a line for the console when it is ready."""
        if self._wanted and self._spare is None and modules:
            self._spare = Spare({**self._settings, **environ}, modules, output)
        if self._reported or self._spare is None:
            return ""
        if self._spare.gone():
            self._reported = True
            return "a restart will wait for imports: they left threads, which a spare process cannot fork"
        if not self._spare.ready():
            return ""
        self._reported = True
        mib = self._spare.bytes() >> 20
        return f"a restart will not wait for imports: a spare process has them, with {mib} MiB of its own"

    def fork(self, spec: LaunchSpec, environ: Mapping[str, str]) -> Forked | None:
        """Return the rank's process; None where there is no spare for it."""
        spare = self._spare
        if spare is None or spec.rank is None or spec.argv[1:3] != ("-m", WORKER_MODULE):
            return None
        # Waiting costs less than importing anew, up to a point.
        if not spare.ready(_IMPORT_SECONDS):
            self.close()
            return None
        return spare.fork(WORKER_MODULE, [list(spec.argv[3:])], environ)

    def run_job(self, module: str, arguments: Sequence[str]) -> int | None:
        """Run a module's ``main`` as ``launch.child`` does; return its exit code, None without a spare."""
        if self._spare is None or not self._spare.ready():
            return None
        mark = {MARK: uuid.uuid4().hex}
        job = self._spare.fork(module, list(arguments), {**os.environ, **mark, "HF_HUB_OFFLINE": "1"})
        return None if job is None else job.wait()

    def close(self) -> None:
        """End the spare."""
        if self._spare is not None:
            self._spare.close()
        self._wanted, self._spare = False, None


def take_over(environ: Mapping[str, str]) -> None:
    """Give this process, forked from a spare, the environment of its start; its mark in ``/proc``, too."""
    os.environ.clear()
    os.environ.update(environ)
    write_environment(MARK, environ[MARK])
