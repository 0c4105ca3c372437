"""Processes that start warm: ``warm.Popen`` in place of ``subprocess.Popen`` for a program of ours, forked
off one that has imported everything and read the package's tables (``warm_modules.txt``).

A fresh interpreter spends 3 to 5 CPU seconds on the imports of torch, Transformers and ours before a test's
first line; a fork spends none. It is a process like any other (a child of who asked, with its own standard
streams, working directory, environment, session and signals), made by ``warm_server.py``. What it starts in
turn by this interpreter is forked too, and so are the workers of xdist. Tests that are about a process's
start or its memory are marked ``fresh``; ``pytest --fresh-processes`` makes every process fresh: the same
results, later.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SERVER = Path(__file__).with_name("warm_server.py")
ROOT = SERVER.parents[1]
ROOM = 100_000  # bytes; the kernel takes no longer string
LENGTH = 8  # bytes of a message's length
#: Variables that an interpreter or a library reads when it starts or is imported: where one is not as the
#: server has it, the process is fresh.
READ_EARLY = (
    "PYTHON",
    "OMP_",
    "MKL_",
    "KMP_",
    "OPENBLAS_",
    "LD_",
    "HF_",
    "TRANSFORMERS_",
    "TORCH_",
    "PYTORCH_",
    "TRITON_",
    "CUDA_",
    "MPL",
    "XDG_",
    "HOME",
    "LANG",
    "LC_",
    "TZ",
)
#: Those among them that a warm process takes over all the same. The second is set here, and by DeepSpeed when
#: it is imported; CUDA reads the third when it is first used, which no server does, and the plan hides the
#: devices from every child that it asks for a model's class; the fourth is torchrun's, for process groups; of
#: the last two the one says how much torch's own log tells, and the other is read when a hub is asked.
READ_LATE = (
    "PYTHONPATH",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
    "CUDA_VISIBLE_DEVICES",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_CPP_LOG_LEVEL",
    "HF_TOKEN",
)
#: What xdist starts its workers with (``execnet.gateway_io.popen_bootstrapline``).
WORKER = "import sys;exec(eval(sys.stdin.readline()))"
#: Modules that launchers start of themselves.
LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "deepspeed.launcher.launch")
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
#: Programs of ours that start no other, or hardly any: they have no server (what they start is fresh).
ALONE = (
    "paceline.checkpoint.preflight",
    "paceline.evaluation.processes.rank",
    "paceline.models.loading.list_parameters",
    "paceline.models.loading.write_sibling",
    "paceline.training.preflight.trial",
    "paceline.training.rank",
)


def read_early(environ: Mapping[str, str]) -> dict[str, str]:
    """Those of ``environ`` that a warm process cannot take over any more."""
    return {k: v for k, v in environ.items() if k.startswith(READ_EARLY) and k not in READ_LATE}


def ignored() -> list[int]:
    """The signals that this process ignores, and so its children."""
    return [int(number) for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN]


class Nursery:
    """Our end of a server: a pristine warm process that forks children for this one."""

    def __init__(self, link: socket.socket, environ: Mapping[str, str]) -> None:
        self._link, self._environ, self._lock = link, read_early(environ), threading.Lock()

    def close(self) -> None:
        """The server ends when it sees this."""
        self._link.close()

    def is_ready(self) -> bool:
        """Wait for a new server's imports; whether they have succeeded."""
        return self._link.recv(1) == b"+"

    def can(self, environ: Mapping[str, str]) -> bool:
        return read_early(environ) == self._environ

    def spawn(self, request: Mapping[str, Any], streams: Sequence[int]) -> int:
        """The pid of a new child of this process. ``streams``: what it has as the request's ``files``."""
        data = json.dumps({**request, "parent": os.getpid()}).encode()
        prctl = ctypes.CDLL(None).prctl
        with self._lock:
            prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # the server's orphan becomes ours
            try:
                socket.send_fds(self._link, [len(data).to_bytes(LENGTH, "big")], streams)
                self._link.sendall(data)
                answer = self._link.recv(LENGTH, socket.MSG_WAITALL)
            finally:
                prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        if len(answer) < LENGTH:
            raise RuntimeError(f"the warm server of process {os.getpid()} is gone")
        return int.from_bytes(answer, "big")


def program_of(argv: Sequence[str]) -> dict[str, Any] | None:
    """A program that this interpreter is asked to run, with ``-u`` or without: ``-m paceline.…``, a
    launcher's module, a worker of xdist, a script, or a program of this environment that its first line
    gives to this interpreter; None for anything else.
    """
    words = [os.fspath(word) for word in argv]
    if words[:1] != [sys.executable]:
        return {"module": None, "argv": words, "at_once": False} if is_ours(words) else None
    if words[1:] == ["-u", "-c", WORKER]:
        return {"module": None, "argv": ["-c"], "at_once": True}
    at_once = words[1:2] == ["-u"]
    first, *more = words[1 + at_once :] or [""]
    if first == "-m" and more and (more[0].startswith("paceline.") or more[0] in LAUNCHERS):
        return {"module": more[0], "argv": more, "at_once": at_once}
    if first.endswith(".py"):
        return {"module": None, "argv": [first, *more], "at_once": at_once}
    return None


def starts_others(module: str | None, argv: Sequence[str]) -> bool:
    """Whether a program may start another of this interpreter."""
    return module not in ALONE if module else not argv[0].endswith("_worker.py")


def is_ours(words: Sequence[str]) -> bool:
    """Whether a program is a script for this interpreter beside it, such as ``torchrun``."""
    if not words or Path(words[0]).parent != Path(sys.executable).parent or not Path(words[0]).is_file():
        return False
    with Path(words[0]).open("rb") as file:
        return file.readline().strip() == b"#!" + os.fsencode(sys.executable)


Fresh = subprocess.Popen


class Popen(Fresh[Any]):
    """``subprocess.Popen``, forked from a warm process where the program is ours and asks for nothing that
    only an exec gives.
    """

    allowed = True  # False for a test marked ``fresh``, and for all under --fresh-processes
    # a warm process has one from its birth, a test gets one when it first asks
    nursery: Nursery | None = None

    def _execute_child(self, *args: Any, **kwargs: Any) -> None:
        """The one step of ``subprocess.Popen`` that makes the process."""
        wish = inspect.signature(Fresh._execute_child).bind(self, *args, **kwargs).arguments  # type: ignore[attr-defined]
        environ = os.environ if wish["env"] is None else wish["env"]
        program = None if wish["shell"] or isinstance(wish["args"], str) else program_of(wish["args"])
        nursery = (
            (type(self).nursery or started())
            if program is not None and self.allowed and sys.platform == "linux"
            else None
        )
        if program is None or nursery is None or not nursery.can(environ):
            super()._execute_child(*args, **kwargs)  # type: ignore[misc]
            return
        if wish["preexec_fn"] is not None and "die_with_parent" not in wish["preexec_fn"].__qualname__:
            raise ValueError(
                f"a function between fork and exec cannot be handed to a warm process: {wish['preexec_fn']}"
            )
        streams = [
            given if given != -1 else own
            for own, given in enumerate((wish["p2cread"], wish["c2pwrite"], wish["errwrite"]))
        ]
        request = {
            **program,
            "environ": dict(environ),
            "cwd": os.fspath(wish["cwd"] or os.getcwd()),
            "files": [0, 1, 2, *wish["pass_fds"]],
            "session": wish["start_new_session"],
            "dies_with_parent": wish["preexec_fn"] is not None,
            "ignored": ignored(),
        }
        try:
            self.pid = nursery.spawn(request, [*streams, *wish["pass_fds"]])
        finally:
            self._close_pipe_fds(
                *(
                    wish[name]
                    for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
                )
            )  # type: ignore[attr-defined]
        self._child_created = True


@functools.cache
def started() -> Nursery:
    """The test process's own server, started when first asked for, when it has imported everything."""
    nursery = starting()
    if not nursery.is_ready():
        raise RuntimeError(
            "the warm server did not start; its error is above (--fresh-processes does without it)"
        )
    return nursery


@functools.cache
def starting() -> Nursery:
    """The same server, which may be importing yet."""
    ours, theirs = socket.socketpair()
    environ = server_environment()
    with theirs:
        server = Fresh(
            [sys.executable, str(SERVER), str(theirs.fileno())],
            env=environ,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    nursery = Nursery(ours, environ)
    atexit.register(server.wait)
    atexit.register(nursery.close)
    return nursery


def server_environment() -> dict[str, str]:
    """As the suites give their processes, with room for a longer one in its place."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("PACELINE_", "PYTEST_", "COVERAGE_"))}
    # CUDA, once asked for its devices, is lost to a fork
    uninitialised = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    return {
        **ours,
        **uninitialised,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT),
        "ROOM": "x" * ROOM,
    }
