"""Run one rank as a child of a process started by another launcher; that process keeps running the user's
code."""

from __future__ import annotations

import itertools
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from paceline.core.diagnostics import Diagnostic
from paceline.launch import processes
from paceline.launch.environment.job_managers import parse_nonnegative_int
from paceline.launch.process_spec import worker_argv
from paceline.launch.program import handling_signals
from paceline.launch.supervision.worker_channel import WorkerServer

POLL_SECONDS = 0.05
RESTARTS = "TORCHELASTIC_RESTART_COUNT"  # part of the key of a store's attempt in torchrun
_MOST_CALLS = 1000  # a process trains less often
_CALLS = itertools.count()
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_beneath(
    arguments: Sequence[str],
    environ: Mapping[str, str],
    *,
    output: int | None = None,
    requests_stop: Callable[[], bool] = lambda: False,
) -> tuple[int, Diagnostic | None]:
    """Run this process's rank in a child and wait; return (exit code, the rank's own error).

    ``arguments``: the worker's; ``output``, ``requests_stop``: as in ``supervisor.run``. Signals are
    passed on to the child, which stops after its step, and the child dies with this process.

    torchrun's agent has one store for all trainings of its processes, so each counts as a further attempt.
    So the ranks of one training do not read keys of another. Every rank must call this equally often.
    """
    server = WorkerServer(1)
    attempt = parse_nonnegative_int(environ.get(RESTARTS, "0")) * _MOST_CALLS + next(_CALLS)
    child = subprocess.Popen(
        worker_argv(*arguments),
        env={**environ, RESTARTS: str(attempt), **server.environ()},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        # A Ctrl-C at the terminal reaches the parent alone, which passes it on once.
        start_new_session=True,
        preexec_fn=processes.die_with_parent(),  # noqa: PLW1509 - one prctl call; no lock is taken
    )

    def pass_on(number: int, frame: FrameType | None) -> None:
        processes.send(child.pid, number)

    with handling_signals(dict.fromkeys(SIGNALS, pass_on)):
        try:
            requested = False
            while child.poll() is None:
                server.poll()
                if not requested and requests_stop():
                    requested = True
                    # Once a request: the rank stops after its step.
                    processes.send(child.pid, signal.SIGTERM)
                time.sleep(POLL_SECONDS)
            server.poll()
            finding = next((w.finding for w in server.workers.values() if w.finding is not None), None)
            code = child.returncode
            # Popen's -N becomes 128 + N, as a shell has it.
            return (code if code >= 0 else 128 - code), finding
        finally:
            if child.poll() is None:
                processes.send_group(child.pid, signal.SIGKILL)
                child.wait()
            server.close()
