"""Send this rank's error to the other ranks and the launcher, and log theirs."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from functools import partial

from paceline.core.diagnostics import Diagnostic, print_diagnostics
from paceline.core.errors import ExitCode, PacelineError
from paceline.launch.supervision.worker_channel import PeerExit
from paceline.runlog import events
from paceline.runtime.failures.alarm import Alarm
from paceline.runtime.failures.heartbeat import Signs
from paceline.runtime.failures.main_thread import write_stacks
from paceline.runtime.failures.root_cause import is_cascade, is_timeout
from paceline.runtime.failures.stragglers import WAITS, write_flight
from paceline.runtime.process_group.world import World
from paceline.runtime.time_limit import exit_now
from paceline.training.errors import diagnose, exit_code_of, memory_used, out_of_memory_hint
from paceline.training.run.record import RunRecord
from paceline.training.stop_signals import StopSignals

ECHO_SECONDS = 1.0  # how long a rank that cannot join the world waits for the launcher's reason
ROOT_CAUSE_SECONDS = 5.0  # how long a rank that lost its peers waits for the failed one's error


class FailureReporter:
    """Reports errors of this rank and of its peers; ``watch`` starts the alarm once all ranks have joined."""

    def __init__(self, run: RunRecord) -> None:
        self._run = run
        self._alarm: Alarm | None = None
        self._signals: StopSignals | None = None
        self._own_error = threading.Event()  # this rank reports its own error, so no other rank's

    def watch(self, world: World) -> None:
        """Start the alarm: it reports other ranks' failures and silence."""
        run = self._run
        self._alarm = Alarm(
            world,
            self.peer_failed,
            on_warning=self.peer_noticed,
            doing=lambda: run.observers.heartbeat.doing() if run.observers else (0, "start"),
            sign=Signs(run.run_dir.heartbeat),
            stopping=lambda: run.line.lost.is_set() or self._signals is not None and self._signals.came(),
            limits=run.plan.limits,
        ).start()

    def hear_launcher(self, signals: StopSignals) -> None:
        """From now on end this rank when the launcher reports the death of another, and hear its signals."""
        self._run.line.on_peer_exit = self.peer_died
        self._signals = signals

    def stop(self) -> None:
        """Stop watching: this rank has succeeded."""
        if self._alarm is not None:
            self._alarm.stop()

    def not_joined(self, error: PacelineError) -> int:
        """Report why this rank could not join the world; return its exit code."""
        line, finding = self._run.line, error.diagnostics[0]
        if line.held and error.__cause__ is not None and is_cascade(error.__cause__):
            # Its report names the cause; this rank's own error would only be an echo.
            time.sleep(ECHO_SECONDS)  # a rank may have been killed: then the launcher ends this one
        print_diagnostics(error.diagnostics, self._run.env.rank)
        line.failed(error.exit_code, finding)
        if self._alarm is not None:  # the others are about to wait for this rank
            self._alarm.raise_error(finding, error.exit_code)
            exit_now(error.exit_code)
        return int(error.exit_code)

    def fail(self, world: World, error: BaseException) -> int:
        """Publish the error to the other ranks, log it and end.

        In a broken process group it ends without destructors, since they can hang.
        """
        run, alarm = self._run, self._alarm
        assert alarm is not None
        echo = world.world_size > 1 and is_cascade(error)
        if echo:
            if is_timeout(error):
                self._write_waits()
            # the launcher may also end this process meanwhile
            alarm.await_root_cause(ROOT_CAUSE_SECONDS, timed_out=is_timeout(error))
        elif run.trainer is not None and run.trainer.saves is not None:
            # A save that is under way may still become durable, if the error is this rank's own.
            run.trainer.saves.rescue()
        self._own_error.set()
        interrupted = isinstance(error, KeyboardInterrupt)
        code = ExitCode.INTERRUPTED if interrupted else exit_code_of(error, echo=echo)
        finding = run.redact.diagnostic(
            diagnose(
                error,
                world.rank,
                alarm.silent_ranks,
                partial(out_of_memory_hint, run.plan, run.environ, world.device),
                partial(memory_used, run.plan, world),
            )
        )
        if echo:
            run.line.ended(code)
        else:
            run.line.failed(code, finding)
        alarm.raise_error(finding, code)
        if isinstance(error, PacelineError):
            shared = error.exit_code == ExitCode.CONFIG
            print_diagnostics(error.diagnostics, world.rank, only_first=shared)
        else:
            print_diagnostics((finding,), world.rank)
        self._write_down(world.rank, finding, code, error)
        world.close(ok=False)
        if world.world_size > 1 or (run.observers is not None and run.observers.abandoned):
            exit_now(code)
        return int(code)

    def peer_noticed(self, finding: Diagnostic, loud: bool) -> None:
        """Record that a rank is silent, slow, or back. Called by the alarm's thread during training."""
        if loud:
            print(finding.render(), file=sys.stderr, flush=True)
        if self._run.observers is not None:
            self._run.observers.log.write(events.Notice(self._run.redact.diagnostic(finding)))

    def peer_failed(self, rank: int, finding: Diagnostic, code: int) -> None:
        """Report another rank's error here too.

        Called by the alarm's thread just before it ends this process.
        """
        run = self._run
        print(f"rank {rank} failed:\n{finding.render()}", file=sys.stderr, flush=True)
        if run.observers is not None:
            self._write_down(rank, finding, code)
        if code == ExitCode.PEER_SILENT or finding.code in WAITS:
            self._write_waits()
        if code == ExitCode.PEER_SILENT:
            run.line.failed(code, finding)
        else:
            run.line.ended(code)

    def _write_waits(self) -> None:
        """Write this rank's last collectives, and where its threads are."""
        run = self._run
        write_flight(run.run_dir.flight(run.env.rank))
        write_stacks(run.run_dir.stacks(run.env.rank))

    def peer_died(self, word: PeerExit) -> None:
        """Log the launcher's report of a killed rank, then exit. Called by the line's thread.

        The launcher has already printed the report on the console.
        """
        if self._own_error.is_set():
            return
        self._write_down(word.rank, word.finding, word.code)
        if self._run.env.num_nodes > 1 and self._alarm is not None:
            self._alarm.raise_error(word.finding, ExitCode.PEER_FAILED)  # other nodes' launchers do not know
        self._run.line.ended(ExitCode.PEER_FAILED)
        exit_now(ExitCode.PEER_FAILED)

    def _write_down(
        self, rank: int, finding: Diagnostic, code: int, error: BaseException | None = None
    ) -> None:
        run = self._run
        trace = "".join(traceback.format_exception(error)) if error is not None else ""
        if run.observers is not None:
            run.observers.failed(events.Error(rank, finding), trace)
        elif trace and not isinstance(error, PacelineError):
            print(trace, file=sys.stderr, flush=True)
        if run.env.rank == 0 and run.lock is not None and run.lock.is_locked:  # it is this run's directory
            try:
                run.write_result("failed", code, (finding,))
            except OSError as exc:  # the same disk may have ended the run; that error is already reported
                print(f"{run.run_dir.result_json} could not be written: {exc}", file=sys.stderr, flush=True)
        if run.observers is not None:
            run.observers.close()
