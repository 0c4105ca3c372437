"""A rank (``training/rank.py``) from the import of torch on.

THE composition root. Order: config and plan → data (no process group yet) → world → share the plan, compare
ranks → model, strategy, trainer → train → durable result and last checkpoint → teardown → exit. Exit codes:
``core.errors.ExitCode``.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console

from paceline.checkpoint.node_local.resume import NodesResume
from paceline.checkpoint.node_local.shared_disks import Disks, find_disks
from paceline.checkpoint.object_store.background_upload import AFTER_STOP_SECONDS, Deadline
from paceline.core.diagnostics import Diagnostic, Severity, print_diagnostics
from paceline.core.errors import BusyError, CheckpointError, ConfigError, ExitCode, PacelineError
from paceline.core.json_types import JsonObject
from paceline.core.os_errors import refusal_of
from paceline.core.package import cache_folder
from paceline.core.rundir import RunDir
from paceline.core.security.file_permissions import written_for
from paceline.core.units import human_bytes
from paceline.data.prepare.main import Bar, summary
from paceline.data.prepare.prepare import Prepared, prepare
from paceline.data.rows.kinds.base import row_kind
from paceline.launch import codes as launch_codes
from paceline.launch.claim_run_dir import claim, in_use
from paceline.launch.environment.guide_variables import keep_compiled_code_private
from paceline.launch.processes import MARK
from paceline.launch.program import lost_output, terminal
from paceline.launch.run_secret import read_secret, unsigned
from paceline.launch.supervision.worker_channel import LauncherConnection, PeerExit
from paceline.models.attention.kernel_choice import activate_flash
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.explain import explain
from paceline.plan.plan import Plan
from paceline.runlog import events
from paceline.runlog.redact import Redactor
from paceline.runlog.result import write_result
from paceline.runlog.stacks import stacks_to
from paceline.runtime.device.device import set_threads, threads_per_rank, use_deterministic_kernels
from paceline.runtime.failures.alarm import Alarm
from paceline.runtime.failures.heartbeat import Signs
from paceline.runtime.failures.liveness_socket import own_address
from paceline.runtime.failures.root_cause import is_cascade, is_timeout
from paceline.runtime.failures.stragglers import write_flight
from paceline.runtime.library_noise import quiet_libraries, spare_torchao
from paceline.runtime.process_group.device_mesh import limit_groups
from paceline.runtime.process_group.rendezvous import refuse
from paceline.runtime.process_group.world import RankEnv, World
from paceline.runtime.time_limit import leave
from paceline.training import codes
from paceline.training.checkpointing.contents import run_state
from paceline.training.checkpointing.resume import Resumes, open_resume
from paceline.training.checkpointing.resume_compatibility import best_is_gone, nothing_left
from paceline.training.errors import diagnose, exit_code_of, memory_used, out_of_memory_hint
from paceline.training.loop.intervals import EVERY
from paceline.training.loop.train_state import TrainState
from paceline.training.loop.trainer import SAVE, Trainer, ended_early
from paceline.training.rank_arguments import Start
from paceline.training.reporting.console import print_summary
from paceline.training.reporting.observers import Observers
from paceline.training.run.session import Session
from paceline.training.same_program import check_same, on_other_disks, share_plan
from paceline.training.stop_signals import StopSignals

ECHO_SECONDS = 1.0  # how long a rank that cannot join the world waits for the launcher's reason
ROOT_CAUSE_SECONDS = 5.0  # how long a rank that lost its peers waits for the failed one's error


def worker_of(
    start: Start,
    env: RankEnv,
    plan: Plan,
    environ: Mapping[str, str],
    line: LauncherConnection,
    settings: Mapping[str, tuple[str, str]],
) -> Worker:
    """Prepare the data and return the worker of this rank. ``settings``: variables that this process has set.

    Raises PacelineError and OSError.
    """
    spare_torchao()
    quiet_libraries(
        quantised=start.config.lora is not None and start.config.lora.quantization_bit is not None
    )
    begun = time.monotonic()
    prepared = prepare_data(start, plan, env.rank, environ)
    seconds = time.monotonic() - begun
    keep_compiled_code_private(environ)
    if start.config.training.full_determinism:
        use_deterministic_kernels()
    if "OMP_NUM_THREADS" not in environ:
        set_threads(threads_per_rank(env.local_world_size))
    return Worker(start, env, plan, prepared, seconds, environ, line, settings)


def prepare_data(start: Start, plan: Plan, rank: int, environ: Mapping[str, str]) -> Prepared:
    """Tokenise the rows to disk.

    The first process does it, the others wait for its file lock; there is no process group yet that could
    time out.
    """
    c, spec = start.config, algorithm_spec(plan.algorithm)
    cache = Path(c.data.cache_dir).expanduser() if c.data.cache_dir else cache_folder(environ)
    tokenised = partial(
        prepare,
        c.data,
        c.model,
        seed=c.training.seed if c.data.seed is None else c.data.seed,
        cache_dir=cache,
        kind=row_kind(spec.rows),
        max_positions=(plan.shape.max_position_embeddings or None) if plan.shape else None,
    )
    with written_for(cache, c.training.output_access):
        if rank != 0:
            return tokenised()
        with Bar(Console(file=terminal(sys.stdout))) as bar:
            return tokenised(report=bar)


class Worker:
    """One rank from joining the world to its exit code."""

    def __init__(
        self,
        start: Start,
        env: RankEnv,
        plan: Plan,
        prepared: Prepared,
        prepare_seconds: float,
        environ: Mapping[str, str],
        line: LauncherConnection,
        settings: Mapping[str, tuple[str, str]],
    ) -> None:
        self.settings = settings
        self.start, self.env, self.plan, self.prepared, self.environ = start, env, plan, prepared, environ
        self.line = line
        self.own_error = threading.Event()  # this rank reports its own error, so no other rank's
        self.prepare_seconds = prepare_seconds
        self.config = start.config
        self.run_dir = RunDir.at(plan.run_dir)
        self.started = time.monotonic()  # a clock that is set while the run goes on does not count
        server = start.config.training.rollout.server if start.config.training.rollout else None
        self.redact = Redactor.of(environ, *((server.api_key_env or "",) if server else ()))
        self.observers: Observers | None = None
        self.trainer: Trainer | None = None
        self.alarm: Alarm | None = None
        self.lock: FileLock | None = None
        self.checkpoint = ""
        self.beside = self.run_dir.checkpoints  # of the one that is resumed from
        self.disks = Disks.one(env.world_size)
        self.on_nodes: NodesResume | None = None

    def run(self) -> int:
        """Join the world, train and close.

        Every error becomes one named diagnostic, on this rank and on the others.
        """
        try:
            self.refuse_unsigned()
            world = World.open(
                self.env,
                device=self.plan.device,
                device_indices=self.plan.device_indices,
                backend=self.plan.backend,
                timeout_seconds=self.plan.limits.start.seconds,
                secret=read_secret(self.environ),
                met=self.watch,
            )
        except PacelineError as exc:
            if self.line.held and exc.__cause__ is not None and is_cascade(exc.__cause__):
                time.sleep(ECHO_SECONDS)  # a rank may have been killed: then the launcher ends this one
            print_diagnostics(exc.diagnostics, self.env.rank)
            self.line.failed(exc.exit_code, exc.diagnostics[0])
            if self.alarm is not None:  # the others are about to wait for this rank
                self.alarm.raise_error(exc.diagnostics[0], exc.exit_code)
                leave(exc.exit_code)
            return int(exc.exit_code)
        # Train; until the end a signal stops the run after a step, and a peer's failure ends it
        signals, alarm = StopSignals(), self.alarm
        assert alarm is not None
        self.line.on_peer_exit = lambda word: self.peer_died(word, alarm)
        try:
            outcome = self.train(world, signals)
            code = ExitCode.STOPPED if outcome == "stopped" else ExitCode.OK
            self.finish(world, outcome, int(code))
        except BaseException as exc:  # noqa: BLE001 - whatever it is, the other ranks must hear its name
            return self.fail(world, alarm, exc)
        # Everything is durable: leave the world, then print the summary, which a signal cuts short
        alarm.stop()
        closed = world.close(ok=True)
        final = int(code) if closed else int(ExitCode.CLOSING)
        self.line.ended(final)
        if world.rank == 0:
            print_summary(
                self.run_dir,
                self.checkpoint,
                plot=bool(self.config.training.report_to),
                answers=not algorithm_spec(self.plan.algorithm).scalar_head,
                hurries=signals.requested,
            )
        signals.restore()
        # Destructors of C++ threads sometimes abort an exiting process; what a hung tracker left hangs it
        left = self.trainer is not None and self.trainer.saves is not None and self.trainer.saves.uploads_left
        if world.world_size > 1 or left or (self.observers is not None and self.observers.abandoned):
            leave(final)
        return final

    def watch(self, world: World) -> None:
        """Start the alarm, now that all ranks have joined: it reports other ranks' failures and silence."""
        self.alarm = Alarm(
            world,
            self.peer_failed,
            on_warning=self.peer_noticed,
            doing=lambda: self.observers.heartbeat.doing() if self.observers else (0, "start"),
            sign=Signs(self.run_dir.heartbeat),
            limits=self.plan.limits,
        ).start()

    def train(self, world: World, signals: StopSignals) -> str:
        """Agree on the plan, build the trainer and run it. Returns the outcome."""
        self.agree_on_plan(world)
        self.open_observers(world)
        assert self.observers is not None
        self.say_start(world)
        resumes = self.resumed(world)
        # Build everything, then log what the run consists of
        session = Session(
            world,
            self.plan,
            self.config,
            self.prepared,
            self.run_dir,
            resumes.reader,
            resumes.former,
            disks=self.disks,
        )
        trainer = self.trainer = session.build(
            self.observers.all(),
            signals.requested,
            self.published,
            self.observers.should_stop,
            self.observers.heartbeat.beat,
        )
        reader = resumes.reader
        self.checkpoint = str(reader.path) if reader else ""
        self.beside = self.run_dir.checkpoints if reader is None else reader.path.parent
        if self.on_nodes is not None:
            for note in self.on_nodes.notes:
                self.observers.note(note)
            if not algorithm_spec(self.plan.algorithm).on_policy:  # who draws reads on in a window
                world.barrier()  # all have loaded: nobody asks for a file any more
                self.on_nodes.close()
        if self.disks.leads(world.rank):
            resumes.mark()
        limits = self.plan.limits
        limit_groups(world, max(limits.step.seconds, limits.between.seconds))
        total = trainer.cadence.total_steps
        self.observers.begin(
            events.RunStarted(
                self.plan.digest(),
                world.world_size,
                str(reader.path) if reader else None,
                trainer.state.step,
                total,
                self.plan.headline(),
            )
        )
        self.say_data()
        self.say_models(trainer, (*session.notes,))
        if (ended := trainer.ended()) is not None:
            self.observers.note(nothing_left(ended, trainer.state, total))
        if self.config.training.eval_on_start and trainer.evaluate is not None and trainer.state.step == 0:
            trainer.measure()
        outcome = trainer.train()
        if trainer.saves is not None:
            beat = partial(self.observers.heartbeat.beat, trainer.state.step, SAVE)
            seconds = self.config.training.upload_timeout or AFTER_STOP_SECONDS
            if not trainer.saves.finish(beat, Deadline(seconds, lambda: signals.since)):
                outcome = "stopped"  # also where the signal came after the last step: a resume uploads
        self.say_models(trainer, (), ("attention", "decoding", "compile"))  # what ran, and compiled how long
        if outcome != "stopped":
            self.load_best(world, trainer)
        return outcome

    def unsigned(self) -> Diagnostic | None:
        """Return the finding that messages are not signed; None if our own launcher has reported it."""
        if MARK in self.environ:
            return None
        env, allowed = self.env, self.config.launch.allow_unsigned_store
        return unsigned(self.environ, env.num_nodes, env.world_size, ours=False, allowed=allowed)

    def refuse_unsigned(self) -> None:
        """Raise ConfigError, before this rank waits for others, where the store must not be unsigned."""
        found = self.unsigned()
        if found is not None and found.severity is Severity.ERROR:
            error = ConfigError(found)
            refuse(self.env, b"", error)  # another node may have a secret
            raise error

    def say_start(self, world: World) -> None:
        """Log what this rank found here: free memory, links, variables set, kernels that are activated."""
        assert self.observers is not None
        open_port = self.unsigned()
        if world.rank == 0:
            set_here = [f"set       {name}={value}: {why}" for name, (value, why) in self.settings.items()]
            free = world.free_bytes
            room = [f"memory    {human_bytes(free)} of this device were free at the start"] if free else []
            collects = f"garbage   Python's is collected between steps, every {EVERY} steps"
            for line in (*room, *world.links, *set_here, collects):
                self.observers.message(line)
        if world.bound:
            self.observers.message(world.bound)
        message = activate_flash(self.plan.flash)
        if message and world.rank == 0:
            self.observers.message(f"attention {message}")
        of_ranks = (*world.notes, *self.disks.notes(self.run_dir.root)) if world.rank == 0 else ()
        for note in (*of_ranks, *self.start.notes, *self.prepared.notes, *filter(None, (open_port,))):
            self.observers.note(note)

    def resumed(self, world: World) -> Resumes:
        """Open the checkpoint to resume from, compare its state with this run's, and take its plan."""
        assert self.observers is not None
        data = self.prepared
        now = run_state(
            TrainState(),
            None,
            self.plan,
            data.fingerprint,
            train_fingerprint=data.train_fingerprint,
            data_definition=data.definition,
        )
        where = self.config.training.resume_from_checkpoint
        if not self.disks.are_one:
            met, port = self.env.meeting_host, self.env.master_port
            self.on_nodes = NodesResume(
                world, self.disks, lambda towards: own_address(towards or met, port), world.secret
            )
        resumes = Resumes(
            lambda damaged: open_resume(world, where, self.run_dir, self.plan, now, damaged, self.on_nodes),
            self.observers.note,
        )
        self.plan = resumes.plan
        return resumes

    def say_models(self, trainer: Trainer, further: Sequence[str] = (), subjects: Sequence[str] = ()) -> None:
        """Log the notes of the trained models, of the ``subjects`` alone if given, and ``further``."""
        assert self.observers is not None
        for role in trainer.algorithm.trains:
            notes = trainer.handles[role].root.notes()
            for subject in subjects or notes:
                if subject in notes:
                    self.observers.message(f"{subject:<9} {notes[subject]}")
        for line in further:
            self.observers.message(line)

    def open_observers(self, world: World) -> None:
        """Open this rank's logs, and send native crash reports there.

        Raises PacelineError if the system refuses.
        """
        given = (self.run_dir, world.rank, self.plan, self.config, self.environ, self.prepared, self.redact)
        try:
            self.observers = Observers(*given, leads=world.local_rank == 0)
            stacks_to(self.run_dir.rank_log(world.rank))
        except OSError as exc:
            why = refusal_of(exc, self.run_dir.root)
            what = (
                f"the logs of rank {world.rank} cannot be opened:"
                f" {why.reason if why else exc.strerror or exc}"
            )
            hint = why.hint if why else "check the disk and its file system"
            raise PacelineError(
                launch_codes.RUN_NOT_WRITABLE(what, str(exc.filename or self.run_dir.root), str(exc), hint)
            ) from exc

    def say_data(self) -> None:
        """Log a summary of the data before the first step."""
        assert self.observers is not None
        t = self.config.training
        seed = t.seed if t.data_seed is None else t.data_seed
        for line in summary(
            self.prepared,
            row_kind(algorithm_spec(self.plan.algorithm).rows),
            seq_len=self.plan.seq_len,
            packing=self.plan.packing,
            seed=seed,
            seconds=self.prepare_seconds,
        ):
            self.observers.message(line)

    def agree_on_plan(self, world: World) -> None:
        """Use rank 0's plan on every rank; claim the run directory unless the parent did, on each disk where
        the nodes do not share it. Collective.
        """

        def make() -> JsonObject:
            data = self.plan.to_json()
            if self.start.plan is None:
                self.claim(data)
                print(explain(self.plan), end="", flush=True)  # no parent printed it
            self.hold()
            return data

        def take() -> None:
            self.claim(data)
            self.hold()

        data = share_plan(world, make)
        check_same(world, self.config, self.prepared.fingerprint)
        self.plan = Plan.from_json(data)
        self.run_dir = RunDir.at(self.plan.run_dir)
        self.disks = find_disks(world, self.run_dir.root, first_on_node=world.local_rank == 0)
        on_other_disks(world, self.disks, take)
        if world.num_nodes > 1 and self.disks.leads(world.rank):
            with suppress(OSError):  # then the next start takes them for apart, which costs it a look
                self.disks.remember(self.run_dir)

    def claim(self, plan: JsonObject) -> None:
        """Make the run directory, with config and plan. Raises ConfigError."""
        t = self.config.training
        claim(
            self.run_dir,
            plan=plan,
            config_file=self.start.config_file,
            overwrite=t.overwrite_output_dir,
            resume=bool(t.resume_from_checkpoint),
            redact=self.redact,
        )

    def hold(self) -> None:
        """Lock the run directory until this rank ends, and remove the result of an earlier attempt."""
        self.lock = FileLock(str(self.run_dir.lock))
        try:
            self.lock.acquire(timeout=0)
        except Timeout:
            raise BusyError(in_use(self.run_dir)) from None
        self.run_dir.result_json.unlink(missing_ok=True)

    def published(self, event: events.CheckpointSaved, notes: Sequence[Diagnostic]) -> None:
        """Record a durable checkpoint."""
        assert self.observers is not None
        self.checkpoint = event.path
        self.observers.hear(event)
        for note in notes:
            self.observers.note(note)

    def load_best(self, world: World, trainer: Trainer) -> None:
        """With load_best_model_at_end, make the best checkpoint the run's result.

        Raises CheckpointError if it is gone.
        """
        if not self.config.training.load_best_model_at_end or trainer.state.best_step is None:
            return
        best = self.run_dir.checkpoint(trainer.state.best_step)
        if not world.any(best.is_dir()):
            best = self.beside / best.name
        if not world.any(best.is_dir()):
            raise CheckpointError(best_is_gone(self.run_dir.checkpoint(trainer.state.best_step)))
        if world.rank == 0 and self.observers is not None:
            self.observers.message(
                f"best: step {trainer.state.best_step},"
                f" {trainer.best.metric} {trainer.state.best_metric:.4g}; `paceline export` uses it"
            )
        self.checkpoint = str(best)

    def finish(self, world: World, outcome: str, code: int) -> None:
        """Write the result durably, then tear down. Collective."""
        assert self.trainer is not None and self.observers is not None
        state = self.trainer.state
        if self.on_nodes is not None:
            self.on_nodes.close()
        found = [*self.trainer.learning.at_end(), *filter(None, (lost_output(),))]
        for diagnostic in found:
            self.observers.note(diagnostic)
        self.observers.check_place()
        if world.rank == 0:
            if outcome == "early_stopped":
                self.observers.message(ended_early(self.trainer))
            self.write_result(outcome, code, found)
        self.observers.finish(
            events.Finished(outcome, state.step, time.monotonic() - self.started), self.checkpoint
        )
        self.trainer.runner.strategy.close()
        world.barrier()

    def write_result(self, outcome: str, code: int, found: Sequence[Diagnostic]) -> None:
        """Write result.json.

        Raises PacelineError if the system refuses: a run without a result has not succeeded.
        """
        try:
            lost = self.observers.log.lost() if self.observers is not None else None
            findings = [*found, *([lost] if lost is not None else [])]
            write_result(self.run_dir, outcome, code, self.facts(), findings, redact=self.redact)
        except OSError as exc:
            why = refusal_of(exc, self.run_dir.root)
            what = (
                f"training has ended ({outcome}), but its result could not be written:"
                f" {why.reason if why else exc.strerror or exc}"
            )
            kept = f"durable: {self.checkpoint}" if self.checkpoint else "no checkpoint was saved"
            hint = why.hint if why else "check the disk and its file system"
            where = str(self.run_dir.result_json)
            raise PacelineError(codes.RUN_RESULT_LOST(what, where, kept, hint)) from exc

    def facts(self) -> JsonObject:
        """Return what the result holds beyond the outcome."""
        state = self.trainer.state.to_json() if self.trainer else {}
        return {
            **state,
            "seconds": round(time.monotonic() - self.started, 3),
            "checkpoint": self.checkpoint,
            "world_size": self.plan.world_size,
            "strategy": self.plan.strategy,
            "plan_digest": self.plan.digest(),
            "load_best_model_at_end": self.config.training.load_best_model_at_end,
        }

    def fail(self, world: World, alarm: Alarm, error: BaseException) -> int:
        """Publish the error to the other ranks, log it and end.

        In a broken process group it ends without destructors, since they can hang.
        """
        echo = world.world_size > 1 and is_cascade(error)
        if echo and is_timeout(error):
            write_flight(self.run_dir.flight(world.rank))
        if echo:
            # the launcher may also end this process meanwhile
            alarm.await_root_cause(ROOT_CAUSE_SECONDS, timed_out=is_timeout(error))
        if not echo and self.trainer is not None and self.trainer.saves is not None:
            self.trainer.saves.rescue()
        self.own_error.set()
        code = (
            ExitCode.INTERRUPTED if isinstance(error, KeyboardInterrupt) else exit_code_of(error, echo=echo)
        )
        hint = partial(out_of_memory_hint, self.plan, self.environ, world.device)
        memory = partial(memory_used, self.plan, world)
        finding = self.redact.diagnostic(diagnose(error, world.rank, alarm.silent_ranks, hint, memory))
        if not echo:
            self.line.failed(code, finding)
        alarm.raise_error(finding, code)
        shared = isinstance(error, PacelineError) and error.exit_code == ExitCode.CONFIG
        found = error.diagnostics if isinstance(error, PacelineError) else (finding,)
        print_diagnostics(found, world.rank, only_first=shared)
        self.write_down(world.rank, finding, code, error)
        world.close(ok=False)
        if world.world_size > 1 or (self.observers is not None and self.observers.abandoned):
            leave(code)
        return int(code)

    def peer_noticed(self, finding: Diagnostic, loud: bool) -> None:
        """Record that a rank is silent, slow, or back. Called by the alarm's thread during training."""
        if loud:
            print(finding.render(), file=sys.stderr, flush=True)
        if self.observers is not None:
            self.observers.log.write(events.Notice(self.redact.diagnostic(finding)))

    def peer_failed(self, rank: int, finding: Diagnostic, code: int) -> None:
        """Report another rank's error here too.

        Called by the alarm's thread just before it ends this process.
        """
        print(f"rank {rank} failed:\n{finding.render()}", file=sys.stderr, flush=True)
        if self.observers is not None:
            self.write_down(rank, finding, code, None)
        if code == ExitCode.PEER_SILENT:
            write_flight(self.run_dir.flight(self.env.rank))
            self.line.failed(code, finding)
        else:
            self.line.ended(code)

    def peer_died(self, word: PeerExit, alarm: Alarm) -> None:
        """Log the launcher's report of a killed rank, then exit. Called by the line's thread.

        The launcher has already printed the report on the console.
        """
        if self.own_error.is_set():
            return
        self.write_down(word.rank, word.finding, word.code, None)
        if self.env.num_nodes > 1:
            alarm.raise_error(word.finding, ExitCode.PEER_FAILED)  # other nodes' launchers do not know of it
        self.line.ended(ExitCode.PEER_FAILED)
        leave(ExitCode.PEER_FAILED)

    def write_down(self, rank: int, finding: Diagnostic, code: int, error: BaseException | None) -> None:
        trace = "".join(traceback.format_exception(error)) if error is not None else ""
        if self.observers is not None:
            self.observers.failed(events.Error(rank, finding), trace)
        elif trace and not isinstance(error, PacelineError):
            print(trace, file=sys.stderr, flush=True)
        if self.env.rank == 0 and self.lock is not None and self.lock.is_locked:  # it is this run's directory
            try:
                write_result(self.run_dir, "failed", code, self.facts(), (finding,), redact=self.redact)
            except OSError as exc:  # the same disk may have ended the run; that error is already reported
                print(f"{self.run_dir.result_json} could not be written: {exc}", file=sys.stderr, flush=True)
        if self.observers is not None:
            self.observers.close()
