"""Starts this node's processes, streams what they print, passes signals on, and leaves nothing behind.

Signals. The first SIGTERM, SIGHUP or Ctrl-C asks every *worker* for a graceful stop by SIGTERM (also behind torchrun's agent, whose
own handling would kill them after a fixed time); a worker saves after its step and exits with 75. A Ctrl-C after that kills
everything and the answer is 130. Every child has a session of its own, so a terminal's Ctrl-C reaches only the supervisor.

Exit codes. The workers' own, see ``exits.overall_code``. When one has failed, the others get ``PEER_SECONDS`` to end by
themselves (the alarm between ranks tells them the error), then SIGTERM, then SIGKILL.

Nothing is left behind. All descendants carry a mark in their environment, by which the rest is found and ended at the end, detached or
not; and should the supervisor itself be killed, the kernel sends its children SIGTERM (Linux).
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError, ExitCode
from paceline.launch import processes
from paceline.launch.exits import CALM, killed_diagnostic, overall_code
from paceline.launch.spec import LaunchSpec

PEER_SECONDS = 20.0  # for the other ranks to learn of a failure and name it
TERM_SECONDS = 10.0  # from SIGTERM to SIGKILL after a failure
POLL_SECONDS = 0.05
# Left over from a launcher around us, they would mislead the workers.
STALE = (
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_ERROR_FILE",
)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def say_to_stderr(text: str) -> None:
    """One line for the person at the terminal."""
    print(text, file=sys.stderr, flush=True)


def run(specs: Sequence[LaunchSpec], *, environ: Mapping[str, str], say: Callable[[str], None] = say_to_stderr) -> int:
    """Starts ``specs`` and waits. ``environ`` is what the children inherit. Returns the exit code for the caller.

    Raises ConfigError when a process cannot be started at all; those already started are ended first.
    """
    return _Supervisor(specs, environ, say).run()


class _Supervisor:
    def __init__(self, specs: Sequence[LaunchSpec], environ: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._specs = tuple(specs)
        self._environ = {key: value for key, value in environ.items() if key not in STALE}
        self._say = say
        self._mark = uuid.uuid4().hex
        self._children: dict[int, subprocess.Popen] = {}  # by position in specs
        self._codes: dict[int, int] = {}
        self._stop_signal: int | None = None
        self._asked: set[int] = set()  # pids that were asked to stop
        self._led: set[int] = set()  # agents whose workers were asked
        self._kill_now = False
        self._first_failure: float | None = None

    def run(self) -> int:
        handlers = self._install()
        try:
            self._start()
            while len(self._codes) < len(self._children):
                self._poll()
                if self._kill_now:
                    return self._killed()
                self._ask_to_stop()
                self._end_stragglers()
                time.sleep(POLL_SECONDS)
            code = overall_code(self._codes, stop_signal=self._stop_signal)
            if self._stop_signal is not None and code == 128 + self._stop_signal:
                self._say("ended before the workers had started their steps: nothing was saved by this start")
            return code
        finally:
            processes.end_all([child.pid for child in self._children.values() if child.poll() is None], self._mark)
            for child in self._children.values():
                child.wait()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _start(self) -> None:
        prepare = processes.die_with_parent()
        for position, spec in enumerate(self._specs):
            env = {**self._environ, **spec.env_additions, processes.MARK: self._mark}
            try:
                self._children[position] = subprocess.Popen(
                    spec.argv,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    preexec_fn=prepare,  # noqa: PLW1509 - one prctl call; no thread is started before
                )
            except OSError as exc:
                hint = "a Python that can be executed, and room for more processes (ulimit -u)"
                raise ConfigError(
                    Diagnostic(
                        "launch.start",
                        f"the process cannot be started: {exc.strerror}",
                        spec.argv[0],
                        spec.shell_line(),
                        hint,
                    )
                ) from exc

    def _poll(self) -> None:
        for position, child in self._children.items():
            code = child.poll()
            if code is None or position in self._codes:
                continue
            self._codes[position] = code
            rank = self._specs[position].rank
            expected = self._stop_signal is not None and code == -signal.SIGTERM
            if code in CALM or expected:
                continue
            ended_by_us = self._first_failure is not None and child.pid in self._asked
            if code < 0 and rank is not None and not ended_by_us:
                self._say(killed_diagnostic(rank, code).render())
            self._first_failure = self._first_failure or time.monotonic()

    def _ask_to_stop(self) -> None:
        """After a stop request: SIGTERM once to each worker, also to those that appear later."""
        if self._stop_signal is None:
            return
        for position, child in self._children.items():
            if position in self._codes:
                continue
            workers = [child.pid]
            if self._specs[position].rank is None:
                workers = processes.rank_children(child.pid)
                if workers:
                    self._led.add(child.pid)
                elif child.pid not in self._led:  # an agent without workers yet is ended itself, before it starts any
                    workers = [child.pid]
            for pid in workers:
                if pid not in self._asked:
                    self._asked.add(pid)
                    processes.send(pid, signal.SIGTERM)

    def _end_stragglers(self) -> None:
        if self._first_failure is None:
            return
        waited = time.monotonic() - self._first_failure
        running = [child for position, child in self._children.items() if position not in self._codes]
        if waited > PEER_SECONDS + TERM_SECONDS:
            for child in running:
                processes.send_group(child.pid, signal.SIGKILL)
        elif waited > PEER_SECONDS:
            for child in running:
                if child.pid not in self._asked:
                    self._asked.add(child.pid)
                    processes.send(child.pid, signal.SIGTERM)

    def _killed(self) -> int:
        self._say("stopped at once; what was not saved before is lost")
        for child in self._children.values():
            if child.poll() is None:
                processes.send_group(child.pid, signal.SIGKILL)
        return int(ExitCode.INTERRUPTED)

    def _install(self) -> dict[int, Any]:
        """Our handlers; only a main thread may set them (elsewhere the caller keeps its own)."""
        if threading.current_thread() is not threading.main_thread():
            return {}
        # nohup ignores SIGHUP and means it. A shell's background job has SIGINT ignored too, but who sends it there wants a stop.
        ours = [
            number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
        ]
        return {number: signal.signal(number, self._on_signal) for number in ours}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stop_signal is None:
            self._stop_signal = number
            more = "; Ctrl-C again ends at once" if number == signal.SIGINT else ""
            self._say(f"stopping after this step, with a checkpoint{more}")
        elif number == signal.SIGINT:
            self._kill_now = True
