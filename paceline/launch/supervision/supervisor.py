"""Start this node's processes, forward signals, collect exit codes, and leave no process behind.

Signals. The first SIGTERM, SIGHUP or Ctrl-C requests a graceful stop: SIGTERM to every *worker*, also behind
torchrun's agent, which would kill them after a fixed time. A worker saves after its step and exits with 75. A
further Ctrl-C kills everything and the exit code is 130. Every child has its own session, so a terminal's
Ctrl-C reaches only the supervisor.

Exit codes. ``exit_codes`` combines those of the workers. A worker announces its end. If it exits without
that, it has failed, whatever its code. If it is killed afterwards, the run's code is 70 (the result exists).
When a rank is killed by a signal, the launcher tells the others at once through their socket
(``worker_channel``); they log it and exit. The supervisor kills ranks that stay longer than ``WORD_SECONDS``,
or have no socket yet. When a rank fails with its own error, the others get ``NAMED_SECONDS`` to hear of it
from that rank (the alarm between ranks). Then the launcher tells them in the same way. ``PEER_SECONDS``, then
SIGTERM, then SIGKILL apply to ranks that only lost a peer on another node. How each rank ended is recorded in
the run directory (``exit_record``).

Cleanup. All descendants carry a mark in their environment, by which the remaining ones, detached or not, are
found and killed at the end. If the supervisor itself is killed, the kernel sends its children SIGTERM
(Linux).
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType

from paceline.core.errors import BusyError, ConfigError, ExitCode
from paceline.launch import codes, processes
from paceline.launch.process_spec import LaunchSpec
from paceline.launch.program import handling_signals
from paceline.launch.supervision.exit_codes import (
    CALM,
    ECHOES,
    Failure,
    MemoryKills,
    killed_diagnostic,
    left_unannounced,
    overall_code,
    root_of,
    signal_name,
)
from paceline.launch.supervision.exit_record import REQUEST, Exit, LaunchRecord
from paceline.launch.supervision.spare import Process, Spares
from paceline.launch.supervision.worker_channel import AGENT, SOCKET, PeerExit, WorkerServer

WORD_SECONDS = 1.2  # for the other ranks to record which rank was killed, and exit
NAMED_SECONDS = 8.0  # for the other ranks to hear of an error from the rank itself
PEER_SECONDS = 20.0  # for the other ranks to detect a failure and report it
WATCH_SECONDS = 1.0  # how often the cgroups of the ranks are looked up
STACKS = getattr(signal, "SIGUSR1", None)  # makes a worker write all threads' stacks to its log
STOPPED_SECONDS = 2.0  # a stopped process (SIGSTOP) reacts neither to a failure nor to SIGTERM
TERM_SECONDS = 10.0  # from SIGTERM to SIGKILL after a failure
POLL_SECONDS = 0.05  # a death is told to the others within this and WORD_SECONDS
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
    requests_stop: Callable[[], bool] = lambda: False,
    spares: Spares | None = None,
) -> int:
    """Start ``specs`` and wait; return the exit code.

    - ``environ``: the children's environment
    - ``record``: where their exits are recorded
    - ``output``: the file descriptor of their standard output and error (None: this process's)
    - ``requests_stop``: whether this process requests a graceful stop, as a signal does
    - ``spares``: where ranks are forked from, once there is one

    Raises ConfigError if a process cannot be started; those already started are ended first. Raises BusyError
    if another run took the directory meanwhile.
    """
    return _Supervisor(specs, environ, report, record, output, requests_stop, spares or Spares(False)).run()


@dataclass
class _Child:
    """A process that this node has started.

    - ``code``: as in ``Popen.returncode``, once it has exited and its last report is read
    - ``ended``: killed by the launcher, since another rank had failed
    - ``led``: an agent whose workers got SIGTERM
    """

    spec: LaunchSpec
    process: Process
    code: int | None = None
    ended: bool = False
    led: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        self.ended = True
        processes.send_group(self.pid, signal.SIGKILL)


class _Supervisor:
    def __init__(
        self,
        specs: Sequence[LaunchSpec],
        environ: Mapping[str, str],
        report: Callable[[str], None],
        record: LaunchRecord | None,
        output: int | None,
        stop_requested: Callable[[], bool],
        spares: Spares,
    ) -> None:
        self._spares = spares
        self._specs, self._output, self._record = tuple(specs), output, record
        self._environ = {key: value for key, value in environ.items() if key not in STALE}
        self._report, self._stop_requested = report, stop_requested
        self._mark = uuid.uuid4().hex
        self._children: list[_Child] = []
        self._behind_agent = any(spec.rank is None for spec in self._specs)
        self._stop_signal: int | None = None
        self._stopped_pids: set[int] = set()  # pids that got SIGTERM, workers of an agent among them
        self._kill_now = False
        self._first_failure: float | None = None
        self._failures: dict[int, Failure] = {}  # by rank
        self._exit: PeerExit | None = None  # what the other ranks are told, and since when
        self._notified_at = 0.0
        self._memory = MemoryKills()
        self._out_of_memory: dict[int, bool | None] = {}  # by rank
        self._watched_at = 0.0
        self._server = WorkerServer(sum(spec.ranks for spec in self._specs))

    def run(self) -> int:
        # Keep SIGHUP ignored under nohup. A shell's background job ignores SIGINT too, but whoever sends
        # it one wants a stop.
        nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        handlers: dict[int, Callable[[int, FrameType | None], None]] = {
            number: self._on_signal for number in SIGNALS if number != signal.SIGHUP or not nohup
        }
        if STACKS is not None:
            handlers[STACKS] = self._on_stacks
        with handling_signals(handlers):
            try:
                self._start()
                while self._running():
                    self._hear()
                    self._poll()
                    self._tend_spare()
                    if self._stop_signal is None and self._stop_requested():
                        self._begin_stop(signal.SIGTERM, REQUEST)
                    if self._kill_now:
                        self._report("stopped at once; anything not saved before is lost")
                        for child in self._children:
                            if child.process.poll() is None:
                                child.kill()
                        return self._end(int(ExitCode.INTERRUPTED))
                    self._request_stop()
                    self._notify_others()
                    self._end_stragglers()
                    time.sleep(POLL_SECONDS)
                self._hear()
                return self._end(self._answer())
            finally:
                # Whatever ended the loop, nothing stays behind, detached processes included (``MARK``).
                alive = [child.pid for child in self._children if child.process.poll() is None]
                processes.end_all(alive, self._mark)
                for child in self._children:
                    child.process.wait()
                self._server.close()

    def _start(self) -> None:
        if self._record is not None:
            self._record.begin()
        prepare = processes.die_with_parent()
        ours = {**self._environ, **self._server.environ()}
        for spec in self._specs:
            environ = {**ours, **spec.env_additions, processes.MARK: self._mark}
            # A fork of the spare, where there is one, has its imports already.
            process: Process | None = self._spares.fork(spec, environ)
            try:
                process = process or subprocess.Popen(
                    spec.argv,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=self._output,
                    stderr=self._output,
                    start_new_session=True,
                    preexec_fn=prepare,  # noqa: PLW1509 - one prctl call; no thread is started before
                )
            except OSError as exc:
                finding = codes.LAUNCH_START(spec.argv[0], spec.shell_line(), strerror=exc.strerror)
                raise ConfigError(finding) from exc
            self._children.append(_Child(spec, process))

    def _tend_spare(self) -> None:
        environ = {**self._environ, **self._specs[0].env_additions}
        if news := self._spares.tend(environ, self._server.modules(), self._output):
            self._report(news)

    def _hear(self) -> None:
        """Read the workers' reports.

        Behind an agent also detect a lost process, since only the agent can wait for it.
        """
        self._server.poll()
        now = time.monotonic()
        # Failures that ranks reported, and, behind an agent, ranks that vanished.
        for rank, worker in self._server.workers.items():
            if rank == AGENT or rank in self._failures:
                continue
            if worker.finding is not None and worker.code is not None and worker.code not in ECHOES:
                self._fails(Failure(rank, worker.code, now, worker.finding))
            # Closed without a word, and not because we told it to leave.
            elif worker.gone and worker.code is None and self._behind_agent and not worker.notified:
                gone = codes.LAUNCH_RANK_GONE(f"rank {rank}", rank=rank)
                self._fails(Failure(rank, -signal.SIGKILL, now, gone))
        if now - self._watched_at > WATCH_SECONDS:
            self._watched_at = now
            pids = [child.pid for child in self._children]
            for pid in (*pids, *(worker.pid for worker in self._server.workers.values())):
                self._memory.watch(pid)

    def _poll(self) -> None:
        for child in self._running():
            child.code = child.process.poll()
            if child.code is not None:
                self._hear()  # its last report takes precedence over its exit code
                self._exited(child, child.code)

    def _exited(self, child: _Child, code: int) -> None:
        """Classify the exit of a process: normal, caused by the launcher, or a failure."""
        rank, now = child.spec.rank, time.monotonic()
        worker = self._server.workers.get(rank) if rank is not None else None
        announced = None if worker is None else worker.code
        in_order = announced in (*CALM, ExitCode.CLOSING) and rank not in self._failures
        if code < 0 and announced is not None and in_order:
            # Killed after it announced its end: the result is durable, only the leaving failed.
            child.code = announced if -code == signal.SIGTERM else int(ExitCode.CLOSING)
            return
        left = code >= 0 and rank is not None and announced is None and self._expects_word(rank, code)
        if not left and (code in CALM or (self._stop_signal is not None and code == -signal.SIGTERM)):
            return
        self._first_failure = self._first_failure or now
        if rank is None:
            return
        if left:
            self._fails_silently(left_unannounced(rank, code, now, self._log(rank)))
        elif child.ended or rank in self._failures:
            return
        # A rank killed by a signal could not report it; other exit codes are its own error or an echo.
        elif code < 0:
            memory = self._memory.killed(child.pid) if code == -signal.SIGKILL else None
            self._out_of_memory[rank] = memory
            killed = killed_diagnostic(rank, code, memory, self._log(rank))
            self._fails_silently(Failure(rank, code, now, killed))
        elif code not in ECHOES:
            self._fails(Failure(rank, code, now))

    def _expects_word(self, rank: int, code: int) -> bool:
        """Whether a rank that exits with ``code`` ought to have announced it.

        Not after a second Ctrl-C, nor if the launcher told it to leave, nor for a worker that is not
        Paceline's.
        """
        worker = self._server.workers.get(rank)
        if code == ExitCode.INTERRUPTED or (code in ECHOES and worker is not None and worker.notified):
            return False
        return worker is not None or (self._record is not None and self._server.serves)

    def _fails_silently(self, failure: Failure) -> None:
        """Report a failure that the rank itself could not report."""
        if failure.finding is not None:
            self._report(failure.finding.render())
        self._fails(failure)

    def _fails(self, failure: Failure) -> None:
        self._failures[failure.rank] = failure
        self._first_failure = self._first_failure or failure.at
        if (failure.code < 0 or failure.silent) and failure.finding is not None and self._exit is None:
            self._exit, self._notified_at = (
                PeerExit(failure.rank, failure.answer, failure.finding),
                failure.at,
            )

    def _notify_others(self) -> None:
        """Tell the other ranks of a failure so that they exit.

        Ranks without a socket get SIGTERM; ranks that stay longer than ``WORD_SECONDS`` are killed.
        """
        now = time.monotonic()
        if self._exit is None:
            root = root_of([*self._failures.values()])
            if root is None or now - root.at < NAMED_SECONDS:
                return
            where = f"rank {root.rank}"
            finding = root.finding or codes.LAUNCH_RANK_FAILED(where, rank=root.rank, code=root.code)
            self._exit, self._notified_at = PeerExit(root.rank, root.answer, finding), now
        self._server.send(self._exit)
        late = now - self._notified_at > WORD_SECONDS
        for child in self._running():
            if child.spec.rank is None:
                # workers of an agent that were told and stayed
                for pid in processes.rank_children(child.pid) if late else ():
                    processes.send(pid, signal.SIGKILL)
            elif late:
                child.kill()
            else:
                child.ended = True
                if child.spec.rank not in self._server.workers:
                    self._stop(child.pid)

    def _request_stop(self) -> None:
        """After a stop request, send SIGTERM once to each worker, also to those that appear later."""
        for child in self._running() if self._stop_signal is not None else ():
            workers = [child.pid] if child.spec.rank is not None else processes.rank_children(child.pid)
            child.led = child.led or child.spec.rank is None and bool(workers)
            # an agent without workers yet is ended before it starts any
            for pid in workers or ([] if child.led else [child.pid]):
                self._stop(pid)

    def _stop(self, pid: int) -> None:
        if pid not in self._stopped_pids:
            self._stopped_pids.add(pid)
            processes.send(pid, signal.SIGTERM)

    def _end_stragglers(self) -> None:
        """End what stays after a failure: stopped processes first; the others by SIGTERM, then SIGKILL."""
        waited = 0.0 if self._first_failure is None else time.monotonic() - self._first_failure
        for child in self._running() if waited > STOPPED_SECONDS else ():
            if processes.state_of(child.pid) in processes.STOPPED:
                child.kill()
            if waited > PEER_SECONDS + TERM_SECONDS:
                processes.send_group(child.pid, signal.SIGKILL)
            elif waited > PEER_SECONDS:
                if STACKS is not None and not child.ended and child.spec.rank in self._server.workers:
                    # Before SIGTERM: its log then shows where it hung.
                    processes.send(child.pid, STACKS)
                child.ended = True
                self._stop(child.pid)

    def _running(self) -> list[_Child]:
        return [child for child in self._children if child.code is None]

    def _log(self, rank: int) -> str:
        return str(self._record.run.rank_log(rank)) if self._record is not None else ""

    def _agent_codes(self) -> Mapping[int, int]:
        """Return the exit codes of an agent's ranks, as it has reported them."""
        agent = self._server.workers.get(AGENT)
        return agent.codes if agent is not None else {}

    def _answer(self) -> int:
        """Return the exit code: that of the root cause if a rank failed by itself."""
        exits = {position: child.code or 0 for position, child in enumerate(self._children)}
        code = overall_code(exits, stop_signal=self._stop_signal)
        if self._behind_agent and code in CALM:
            # Ranks that exited in the middle of the run look calm to their agent
            for rank, worker in self._server.workers.items():
                reported = self._agent_codes().get(rank, 0)
                if (
                    worker.gone
                    and worker.code is None
                    and reported in CALM
                    and rank not in (AGENT, *self._failures)
                ):
                    self._fails_silently(left_unannounced(rank, reported, time.monotonic(), self._log(rank)))
        failures = self._failures.values()
        root = root_of([failure for failure in failures if not self._behind_agent or failure.code > 0])
        if root is not None:
            return root.answer
        if self._stop_signal is not None and code == 128 + self._stop_signal:
            saved = self._record is not None and self._record.saved
            self._report(
                "ended without a further save: this start's newest checkpoint stays"
                if saved
                else "ended before the workers started their first step: this start saved nothing"
            )
        return code

    def _end(self, code: int) -> int:
        """Record how each rank ended.

        Raises BusyError where a rank found another run's lock: nothing is written into that run's directory.
        """
        for failure in self._failures.values():
            if failure.finding is not None and failure.finding.code == codes.RUN_IN_USE.name:
                raise BusyError(failure.finding)
        if self._record is None:
            return code
        root = self._agent_exit(root_of([*self._failures.values()])) if code != ExitCode.OK else None
        refused = self._record.write(self._exits(), code, root)
        for finding in refused:
            self._report(finding.render())
        path = self._record.run.exits(self._record.node_rank)
        if root is not None and path.is_file() and not refused:
            self._report(f"exit code {code}, from rank {root.rank}; how each rank ended: {path}")
        return code

    def _agent_exit(self, root: Failure | None) -> Failure | None:
        """Take a rank's exit code from torchrun's agent, which alone knows the signal that killed it."""
        code = self._agent_codes().get(root.rank, 0) if root is not None else 0
        if root is None or root.code >= 0 or code >= 0:
            return root
        pid = self._server.workers[root.rank].pid
        memory = self._memory.killed(pid) if code == -signal.SIGKILL else None
        finding = killed_diagnostic(root.rank, code, memory, self._log(root.rank))
        return Failure(root.rank, code, root.at, finding)

    def _exits(self) -> list[Exit]:
        workers, exits = self._server.workers, []
        for child in self._children:
            rank = child.spec.rank
            if rank is not None:
                worker = workers.get(rank)
                by_us = (child.ended or child.pid in self._stopped_pids) and rank not in self._failures
                memory, finding = self._out_of_memory.get(rank), worker.finding if worker else None
                code = child.process.wait()
                exits.append(
                    Exit.of(rank, child.pid, code, by_us=by_us, out_of_memory=memory, finding=finding)
                )
                continue
            # Behind an agent the ranks' exit codes come from its message
            reported = self._agent_codes()
            for rank in sorted({*reported, *workers} - {AGENT}):
                worker = workers.get(rank)
                if worker is None:
                    exits.append(Exit.of(rank, 0, reported[rank]))
                else:
                    code_of_rank = reported.get(rank, worker.code)
                    exits.append(Exit.of(rank, worker.pid, code_of_rank, finding=worker.finding))
        return exits

    def _on_stacks(self, number: int, frame: FrameType | None) -> None:
        """Pass the request for stacks on to connected ranks, which listen for it."""
        for worker in list(self._server.workers.values()):
            processes.send(worker.pid, number)
        self._report("signal USR1: each rank writes the stacks of its threads to its log, and goes on")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._begin_stop(number, signal_name(number))

    def _begin_stop(self, number: int, reason: str) -> None:
        if self._record is not None and self._record.stop in ("", REQUEST):
            self._record.stop = reason  # a signal also ends what was to go on after a request
        if self._stop_signal is None:
            self._stop_signal = number
            more = "; press Ctrl-C again to stop at once" if number == signal.SIGINT else ""
            self._report(f"stopping after this step, with a checkpoint{more}")
        elif number == signal.SIGINT:
            self._kill_now = True
