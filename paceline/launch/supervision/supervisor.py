"""Start this node's processes, forward signals, collect exit codes, and leave no process behind.

Signals. The first SIGTERM, SIGHUP or Ctrl-C requests a graceful stop: SIGTERM to every *worker* (also behind
torchrun's agent, which would itself kill them after a fixed time); a worker saves after its step and exits
with 75. A further Ctrl-C kills everything and the exit code is 130. Every child has its own session, so a
terminal's Ctrl-C reaches only the supervisor.

Exit codes. Those of the workers, see ``exits``. A worker announces its end; one that exits without a word
has failed, whatever its code, and one that is killed after it makes the run's code 70 (the result is there).
When a rank is killed by a signal, the others are told at
once through their socket (``line.py``), write it down and exit; those that stay longer than ``WORD_SECONDS``,
or have no socket yet, are killed. When a rank fails with its own error, the others get ``NAMED_SECONDS`` to
hear of it from that rank (the alarm between ranks); then the launcher tells them in the same way.
``PEER_SECONDS``, then SIGTERM, then SIGKILL apply to ranks that only lost a peer on another node. How each
rank ended is recorded in the run directory (``record.py``).

Cleanup. All descendants carry a mark in their environment, by which the remaining ones, detached or not, are
found and killed at the end; if the supervisor itself is killed, the kernel sends its children SIGTERM
(Linux).
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

from paceline.core.errors import BusyError, ConfigError, ExitCode
from paceline.launch import codes, processes
from paceline.launch.process_spec import LaunchSpec
from paceline.launch.supervision.exit_codes import (
    CALM,
    ECHOES,
    Failure,
    killed_diagnostic,
    left_unannounced,
    overall_code,
    root_of,
)
from paceline.launch.supervision.exit_record import Exit, LaunchRecord
from paceline.launch.supervision.launcher_channel import Exchange
from paceline.launch.supervision.oom_kills import MemoryKills
from paceline.launch.supervision.worker_channel import AGENT, SOCKET, Word

WORD_SECONDS = 1.2  # for the other ranks to record which rank was killed, and exit
NAMED_SECONDS = 8.0  # for the other ranks to hear of an error from the rank itself
PEER_SECONDS = 20.0  # for the other ranks to detect a failure and report it
WATCH_SECONDS = 1.0  # how often the cgroups of the ranks are looked up
STACKS = getattr(signal, "SIGUSR1", None)  # makes a worker write all threads' stacks to its log
STOPPED_SECONDS = 2.0  # a stopped process (SIGSTOP) reacts neither to a failure nor to SIGTERM
TERM_SECONDS = 10.0  # from SIGTERM to SIGKILL after a failure
POLL_SECONDS = 0.05
# Variables of an outer launcher that would mislead the workers.
STALE = (
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_ERROR_FILE",
    SOCKET,
)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def report_to_stderr(text: str) -> None:
    """Print one line for the user at the terminal."""
    print(text, file=sys.stderr, flush=True)


def run(
    specs: Sequence[LaunchSpec],
    *,
    environ: Mapping[str, str],
    report: Callable[[str], None] = report_to_stderr,
    record: LaunchRecord | None = None,
    output: int | None = None,
    asks_to_stop: Callable[[], bool] = lambda: False,
) -> int:
    """Start ``specs`` and wait; return the exit code.

    ``environ``: what the children inherit; ``record``: where their exits are recorded; ``output``: the file
    descriptor of their standard output and error (None: this process's); ``asks_to_stop``: whether this
    process wants a graceful stop, as a signal asks for. Raises ConfigError if a process cannot be started;
    those already started are ended first. Raises BusyError if another run took the directory meanwhile.
    """
    return _Supervisor(specs, environ, report, record, output, asks_to_stop).run()


class _Supervisor:
    def __init__(
        self,
        specs: Sequence[LaunchSpec],
        environ: Mapping[str, str],
        report: Callable[[str], None],
        record: LaunchRecord | None,
        output: int | None,
        asks_to_stop: Callable[[], bool],
    ) -> None:
        self._stop_requested = asks_to_stop
        self._specs = tuple(specs)
        self._environ = {key: value for key, value in environ.items() if key not in STALE}
        self._report = report
        self._record, self._output = record, output
        self._mark = uuid.uuid4().hex
        self._children: dict[int, subprocess.Popen] = {}  # by position in specs
        self._codes: dict[int, int] = {}
        self._stop_signal: int | None = None
        self._stopped_pids: set[int] = set()  # pids that got SIGTERM
        self._ended: set[int] = set()  # pids that we killed since another rank had failed
        self._led: set[int] = set()  # agents whose workers got SIGTERM
        self._kill_now = False
        self._first_failure: float | None = None
        self._failures: list[Failure] = []
        self._word: Word | None = None
        self._word_at = 0.0
        self._memory = MemoryKills()
        self._out_of_memory: dict[int, bool | None] = {}  # by rank
        self._checked_at = 0.0
        self._exchange = Exchange(sum(spec.ranks for spec in self._specs))

    def run(self) -> int:
        handlers = self._install()
        try:
            self._start()
            while len(self._codes) < len(self._children):
                self._hear()
                self._poll()
                if self._stop_signal is None and self._stop_requested():
                    self._on_signal(signal.SIGTERM, None)
                if self._kill_now:
                    return self._end(self._killed())
                self._ask_to_stop()
                self._pass_word()
                self._end_stragglers()
                time.sleep(POLL_SECONDS)
            self._hear()
            return self._end(self._answer())
        finally:
            processes.end_all(
                [child.pid for child in self._children.values() if child.poll() is None], self._mark
            )
            for child in self._children.values():
                child.wait()
            self._exchange.close()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _start(self) -> None:
        if self._record is not None:
            self._record.begin()
        prepare = processes.die_with_parent()
        for position, spec in enumerate(self._specs):
            env = {
                **self._environ,
                **self._exchange.environ(),
                **spec.env_additions,
                processes.MARK: self._mark,
            }
            try:
                self._children[position] = subprocess.Popen(
                    spec.argv,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=self._output,
                    stderr=self._output,
                    start_new_session=True,
                    preexec_fn=prepare,  # noqa: PLW1509 - one prctl call; no thread is started before
                )
            except OSError as exc:
                raise ConfigError(
                    codes.LAUNCH_START(spec.argv[0], spec.shell_line(), strerror=exc.strerror)
                ) from exc

    def _hear(self) -> None:
        """Read the workers' reports.

        Behind an agent also notice a lost process, which only the agent can wait for.
        """
        self._exchange.poll()
        known = {failure.rank for failure in self._failures}
        # Failures that ranks reported, and, behind an agent, ranks that vanished.
        for rank, caller in self._exchange.callers.items():
            if rank == AGENT or rank in known:
                continue
            if caller.finding is not None and caller.code is not None and caller.code not in ECHOES:
                self._fails(Failure(rank, caller.code, time.monotonic(), caller.finding))
            elif caller.gone and caller.code is None and self._behind_agent() and not caller.notified:
                self._fails(
                    Failure(
                        rank,
                        -signal.SIGKILL,
                        time.monotonic(),
                        codes.LAUNCH_RANK_GONE(f"rank {rank}", rank=rank),
                    )
                )
        if time.monotonic() - self._checked_at > WATCH_SECONDS:
            self._checked_at = time.monotonic()
            for pid in (
                *(c.pid for c in self._children.values()),
                *(c.pid for c in self._exchange.callers.values()),
            ):
                self._memory.watch(pid)

    def _poll(self) -> None:
        for position, child in self._children.items():
            code = child.poll()
            if code is None or position in self._codes:
                continue
            self._codes[position] = code
            self._hear()  # its last report takes precedence over its exit code
            rank = self._specs[position].rank
            announced = self._announced(rank)
            if code < 0 and announced is not None and self._is_done(rank):
                self._codes[position] = announced if -code == signal.SIGTERM else int(ExitCode.CLOSING)
                continue
            if code >= 0 and rank is not None and announced is None and self._expects_word(rank, code):
                self._first_failure = self._first_failure or time.monotonic()
                failure = left_unannounced(rank, code, time.monotonic(), self._log(rank))
                if failure.finding is not None:
                    self._report(failure.finding.render())
                self._fails(failure)
                continue
            # Exits in order, and deaths that we caused, are not failures.
            expected = self._stop_signal is not None and code == -signal.SIGTERM
            if code in CALM or expected:
                continue
            self._first_failure = self._first_failure or time.monotonic()
            if (
                rank is None
                or child.pid in self._ended
                or rank in {failure.rank for failure in self._failures}
            ):
                continue
            # A rank killed by a signal could not report it; other exit codes are its own error or an echo.
            if code < 0:
                self._out_of_memory[rank] = (
                    self._memory.killed(child.pid) if code == -signal.SIGKILL else None
                )
                finding = killed_diagnostic(rank, code, self._out_of_memory[rank], self._log(rank))
                self._report(finding.render())
                self._fails(Failure(rank, code, time.monotonic(), finding))
            elif code not in ECHOES:
                self._fails(Failure(rank, code, time.monotonic()))

    def _announced(self, rank: int | None) -> int | None:
        """Return the exit code that a rank has announced; None if it has announced none."""
        caller = self._exchange.callers.get(rank) if rank is not None else None
        return None if caller is None else caller.code

    def _is_done(self, rank: int | None) -> bool:
        """Whether the end that a rank has announced is one in order."""
        return self._announced(rank) in (*CALM, ExitCode.CLOSING) and rank not in {
            failure.rank for failure in self._failures
        }

    def _expects_word(self, rank: int, code: int) -> bool:
        """Whether a rank that exits with ``code`` ought to have announced it.

        Not after a second Ctrl-C, nor one that we told to leave; nor a worker that is none of ours.
        """
        caller = self._exchange.callers.get(rank)
        if code == ExitCode.INTERRUPTED or (code in ECHOES and caller is not None and caller.notified):
            return False
        return caller is not None or (self._record is not None and self._exchange.serves)

    def _fails(self, failure: Failure) -> None:
        self._failures.append(failure)
        self._first_failure = self._first_failure or failure.at
        if (failure.code < 0 or failure.silent) and failure.finding is not None and self._word is None:
            self._word, self._word_at = Word(failure.rank, failure.answer, failure.finding), failure.at

    def _pass_word(self) -> None:
        """Tell the other ranks of a failure so that they exit.

        Ranks without a socket get SIGTERM; ranks that stay longer than ``WORD_SECONDS`` are killed.
        """
        if self._word is None:
            named = root_of(self._failures)
            if named is None or time.monotonic() - named.at < NAMED_SECONDS:
                return
            finding = named.finding or codes.LAUNCH_RANK_FAILED(
                f"rank {named.rank}", rank=named.rank, code=named.code
            )
            self._word, self._word_at = Word(named.rank, named.answer, finding), time.monotonic()
        self._exchange.send(self._word)
        late = time.monotonic() - self._word_at > WORD_SECONDS
        for position, child in self._running():
            rank = self._specs[position].rank
            if rank is None:
                self._end_led(child.pid, late)
                continue
            self._ended.add(child.pid)
            if late:
                processes.send_group(child.pid, signal.SIGKILL)
            elif rank not in self._exchange.callers:
                self._stop_child(child.pid)

    def _end_led(self, agent: int, late: bool) -> None:
        """Kill the workers of an agent that were told and stayed."""
        for pid in processes.rank_children(agent) if late else ():
            processes.send(pid, signal.SIGKILL)

    def _ask_to_stop(self) -> None:
        """After a stop request, send SIGTERM once to each worker, also to those that appear later."""
        if self._stop_signal is None:
            return
        for position, child in self._running():
            workers = [child.pid]
            if self._specs[position].rank is None:
                workers = processes.rank_children(child.pid)
                if workers:
                    self._led.add(child.pid)
                elif child.pid not in self._led:  # an agent without workers yet: end it before it starts any
                    workers = [child.pid]
            for pid in workers:
                self._stop_child(pid)

    def _stop_child(self, pid: int) -> None:
        if pid not in self._stopped_pids:
            self._stopped_pids.add(pid)
            processes.send(pid, signal.SIGTERM)

    def _end_stragglers(self) -> None:
        if self._first_failure is None:
            return
        waited = time.monotonic() - self._first_failure
        # Stopped processes first; then SIGTERM to the others, then SIGKILL.
        if waited > STOPPED_SECONDS:
            for _, child in self._running():
                if processes.state_of(child.pid) in processes.STOPPED:
                    self._ended.add(child.pid)
                    processes.send_group(child.pid, signal.SIGKILL)
        if waited > PEER_SECONDS + TERM_SECONDS:
            for _, child in self._running():
                processes.send_group(child.pid, signal.SIGKILL)
        elif waited > PEER_SECONDS:
            for position, child in self._running():
                if (
                    STACKS is not None
                    and child.pid not in self._ended
                    and self._specs[position].rank in self._exchange.callers
                ):
                    processes.send(child.pid, STACKS)
                self._ended.add(child.pid)
                self._stop_child(child.pid)

    def _running(self) -> list[tuple[int, subprocess.Popen]]:
        return [
            (position, child) for position, child in self._children.items() if position not in self._codes
        ]

    def _behind_agent(self) -> bool:
        return any(spec.rank is None for spec in self._specs)

    def _log(self, rank: int) -> str:
        return str(self._record.run.rank_log(rank)) if self._record is not None else ""

    def _killed(self) -> int:
        self._report("stopped at once; anything not saved before is lost")
        for child in self._children.values():
            if child.poll() is None:
                self._ended.add(child.pid)
                processes.send_group(child.pid, signal.SIGKILL)
        return int(ExitCode.INTERRUPTED)

    def _answer(self) -> int:
        """Return the exit code: that of the root cause if a rank failed by itself."""
        if self._behind_agent() and overall_code(self._codes, stop_signal=self._stop_signal) in CALM:
            self._left_their_agent()
        root = root_of(
            [failure for failure in self._failures if not self._behind_agent() or failure.code > 0]
        )
        if root is not None:
            return root.answer
        code = overall_code(self._codes, stop_signal=self._stop_signal)
        if self._stop_signal is not None and code == 128 + self._stop_signal:
            saved = self._record is not None and self._record.saved
            self._report(
                "ended without a further save: this start's newest checkpoint stays"
                if saved
                else "ended before the workers started their first step: this start saved nothing"
            )
        return code

    def _left_their_agent(self) -> None:
        """Count ranks behind an agent that exited in the middle of the run, which to the agent look calm."""
        callers = self._exchange.callers
        codes_seen = callers[AGENT].codes if AGENT in callers else {}
        known = {failure.rank for failure in self._failures}
        for rank, caller in callers.items():
            code = codes_seen.get(rank, 0)
            if rank != AGENT and rank not in known and caller.gone and caller.code is None and code in CALM:
                failure = left_unannounced(rank, code, time.monotonic(), self._log(rank))
                if failure.finding is not None:
                    self._report(failure.finding.render())
                self._fails(failure)

    def _end(self, code: int) -> int:
        """Record how each rank ended.

        Raises BusyError where a rank found another run's lock: nothing is written into that run's directory.
        """
        for one in self._failures:
            if one.finding is not None and one.finding.code == codes.RUN_IN_USE.name:
                raise BusyError(one.finding)
        if self._record is None:
            return code
        root = self._as_the_agent_says(root_of(self._failures)) if code != ExitCode.OK else None
        refused = self._record.write(self._exits(), code, root)
        for finding in refused:
            self._report(finding.render())
        path = self._record.run.exits(self._record.node_rank)
        if root is not None and path.is_file() and not refused:
            self._report(f"exit code {code}, from rank {root.rank}; how each rank ended: {path}")
        return code

    def _as_the_agent_says(self, root: Failure | None) -> Failure | None:
        """Take a rank's exit code from torchrun's agent, which alone knows the signal that killed it."""
        callers = self._exchange.callers
        code = callers[AGENT].codes.get(root.rank, 0) if root is not None and AGENT in callers else 0
        if root is None or root.code >= 0 or code >= 0:
            return root
        memory = self._memory.killed(callers[root.rank].pid) if code == -signal.SIGKILL else None
        return Failure(
            root.rank, code, root.at, killed_diagnostic(root.rank, code, memory, self._log(root.rank))
        )

    def _exits(self) -> list[Exit]:
        callers = self._exchange.callers
        exits = []
        for position, spec in enumerate(self._specs):
            # Behind an agent the ranks' exit codes come from its message.
            if spec.rank is None:
                agent_codes = callers[AGENT].codes if AGENT in callers else {}
                for rank in sorted({*agent_codes, *callers} - {AGENT}):
                    caller = callers.get(rank)
                    code = agent_codes.get(rank, caller.code if caller else None)
                    exits.append(
                        Exit.of(
                            rank,
                            caller.pid if caller else 0,
                            code,
                            finding=caller.finding if caller else None,
                        )
                    )
                continue
            child, caller = self._children[position], callers.get(spec.rank)
            by_us = child.pid in self._stopped_pids | self._ended and spec.rank not in {
                one.rank for one in self._failures
            }
            finding = caller.finding if caller is not None else None
            memory = self._out_of_memory.get(spec.rank)
            exits.append(
                Exit.of(
                    spec.rank, child.pid, child.wait(), by_us=by_us, out_of_memory=memory, finding=finding
                )
            )
        return exits

    def _install(self) -> dict[int, Any]:
        """Install our signal handlers; only a main thread may (elsewhere the caller keeps its own)."""
        if threading.current_thread() is not threading.main_thread():
            return {}
        # Keep SIGHUP ignored under nohup. A shell's background job ignores SIGINT too, but whoever sends
        # it one wants a stop.
        ours = [
            number
            for number in SIGNALS
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
        ]
        handlers = dict.fromkeys(ours, self._on_signal)
        if STACKS is not None:
            handlers[STACKS] = self._on_stacks
        return {number: signal.signal(number, handler) for number, handler in handlers.items()}

    def _on_stacks(self, number: int, frame: FrameType | None) -> None:
        """Hand the request for stacks on to the ranks: those that have called listen for it."""
        for caller in list(self._exchange.callers.values()):
            processes.send(caller.pid, number)
        self._report("signal USR1: each rank writes the stacks of its threads to its log, and goes on")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stop_signal is None:
            self._stop_signal = number
            more = "; press Ctrl-C again to stop at once" if number == signal.SIGINT else ""
            self._report(f"stopping after this step, with a checkpoint{more}")
        elif number == signal.SIGINT:
            self._kill_now = True
