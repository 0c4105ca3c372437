"""A rank (``training/rank.py``) from the import of torch on: THE composition root.

Config and plan → data (no process group yet) → world → share the plan, compare ranks → model, strategy,
trainer → train → durable result and last checkpoint → teardown → exit. Exit codes: ``core.errors.ExitCode``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

import torch

from paceline.checkpoint.object_store.background_upload import AFTER_STOP_SECONDS, Deadline
from paceline.core.errors import ExitCode, PacelineError
from paceline.launch.environment.guide_variables import keep_compiled_code_private
from paceline.launch.processes import MARK
from paceline.launch.run_secret import read_secret
from paceline.launch.supervision.worker_channel import LauncherConnection
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.plan import Plan
from paceline.runlog.lines import is_verbose, next_commands
from paceline.runtime.device.device import use_deterministic_kernels
from paceline.runtime.device.host import process_seconds, threads_per_rank
from paceline.runtime.library_noise import import_without_torchao, quiet_libraries
from paceline.runtime.process_group.data_preparation import DataPreparation
from paceline.runtime.process_group.device_mesh import limit_groups
from paceline.runtime.process_group.world import RankEnv, World
from paceline.runtime.time_limit import exit_now
from paceline.training.checkpointing.resume_compatibility import nothing_left
from paceline.training.loop.nonfinite_trace import explain_nonfinite
from paceline.training.loop.trainer import SAVE, Hooks
from paceline.training.rank_arguments import Start
from paceline.training.reporting.console import print_summary
from paceline.training.run import startup
from paceline.training.run.build import RunBuilder
from paceline.training.run.last_checkpoint import LastCheckpoint
from paceline.training.run.peer_failures import FailureReporter
from paceline.training.run.record import RunRecord
from paceline.training.spare import of_libraries
from paceline.training.stop_signals import StopSignals


def prepare_run(
    start: Start, env: RankEnv, plan: Plan, environ: Mapping[str, str], line: LauncherConnection
) -> RunRecord:
    """Prepare the data; return the record of the run.

    Raises PacelineError, or whatever a converter or a reader of data raises; the other nodes hear of it.
    """
    import_without_torchao()
    quiet_libraries()
    begun = time.monotonic()
    preparation = DataPreparation(env, plan.limits.meet_seconds)
    try:
        with preparation:
            prepared = startup.prepare_data(start.config, plan, env.rank, environ)
    except (Exception, SystemExit) as error:
        startup.report_to_other_nodes(env, environ, error, preparation.store)
        raise
    run = RunRecord(start, env, plan, environ, line, prepared, time.monotonic() - begun, preparation.store)
    # Before torch compiles anything: it runs code from its cache, by default a folder in /tmp that another
    # user may have made.
    keep_compiled_code_private(environ)
    if start.config.training.full_determinism:
        use_deterministic_kernels()
    if "OMP_NUM_THREADS" not in environ:  # torch would take all cores for each rank
        torch.set_num_threads(threads_per_rank(env.local_world_size))
    return run


def run_worker(run: RunRecord, settings: Mapping[str, tuple[str, str]]) -> int:
    """Join the world, train and close; return the exit code. ``settings``: variables this process has set.

    Every error becomes one diagnostic with a code, on this rank and on the others.
    """
    failures = FailureReporter(run)
    try:
        startup.refuse_unsigned(run)
        # After the data: preparing may take hours, and a process group's first collective has a limit of
        # minutes.
        world = World.open(
            run.env,
            device=run.plan.device,
            device_indices=run.plan.device_indices,
            backend=run.plan.backend,
            timeout_seconds=run.plan.limits.start.seconds,
            meet_seconds=run.plan.limits.meet_seconds,
            secret=read_secret(run.environ),
            hosted=run.hosted,
            met=failures.watch,
        )
    except PacelineError as error:
        return failures.not_joined(error)
    # Until the end a signal stops the run after a step, and a peer's failure ends it
    signals = StopSignals()
    failures.hear_launcher(signals)
    try:
        outcome = train(world, run, signals, settings)
        code = ExitCode.STOPPED if outcome == "stopped" else ExitCode.OK
        run.finish(world, outcome, int(code))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the other ranks must hear its name
        return failures.fail(world, error)
    # Everything is durable: leave the world, then print the summary, which a signal cuts short
    failures.stop()
    final = int(code) if world.close(ok=True) else int(ExitCode.CLOSING)
    run.line.ended(final)
    if world.rank == 0:
        print_summary(
            run.run_dir,
            run.checkpoint,
            plot=bool(run.config.training.report_to),
            commands=_next_commands(run, outcome),
            verbose=is_verbose(run.environ),
            hurries=signals.requested,
        )
    signals.restore()
    # Destructors of C++ threads sometimes abort an exiting process; what a hung tracker left hangs it
    if world.world_size > 1 or run.leaves_threads:
        exit_now(final)
    return final


def _next_commands(run: RunRecord, outcome: str) -> str:
    """Return the lines with the next commands; empty where the parent process prints them with its own."""
    stopped = outcome == "stopped"
    if stopped and MARK in run.environ:
        return ""
    return next_commands(
        run.run_dir.root,
        resume="the same command again, with --resume latest" if stopped else "",
        saved=bool(run.checkpoint),
        answers=not algorithm_spec(run.plan.algorithm).scalar_head,
    )


def train(world: World, run: RunRecord, signals: StopSignals, settings: Mapping[str, tuple[str, str]]) -> str:
    """Agree on the plan, build the trainer and run it; return the outcome. Collective."""
    run.agree_on_plan(world)
    observers = run.open_observers(world)
    startup.log_start(world, run, observers, settings)
    resumes = run.find_resume(world, observers, run.config.training.resume_from_checkpoint)
    # Build everything, then log what the run consists of
    where = world, run.plan, run.config, run.prepared, run.run_dir
    stop_requested = signals.requested
    builder = RunBuilder(
        *where,
        resumes.reader,
        resumes.former,
        disks=run.disks,
        stop_requested=stop_requested,
        back=LastCheckpoint(run, world, observers),
    )
    hooks = Hooks(observers.hear, stop_requested, observers.should_stop, observers.heartbeat.beat)
    trainer = run.train_with(builder.build(hooks, run.published))
    state, t, limits = trainer.state, run.config.training, run.plan.limits
    run.end_resume(world, observers, resumes)
    # The start may load and compile for long; from here on a collective that takes so long is a hang.
    limit_groups(world, max(limits.step.seconds, limits.between.seconds))
    total = trainer.cadence.total_steps
    observers.begin(run.start_event(world, state.step, total, process_seconds()))
    startup.log_data(run, observers)
    startup.log_models(trainer, observers)
    for line in builder.notes:
        observers.detail(line)
    startup.log_overview(run, trainer, observers)
    if (ended := trainer.ended()) is not None:
        observers.note(nothing_left(ended, state, total))
    if run.env.local_rank == 0:
        run.line.imported(of_libraries())
    if t.eval_on_start and trainer.evaluate is not None and state.step == 0:
        trainer.measure()
    with explain_nonfinite(run.config, state), world.waits.counting():
        outcome = trainer.train()
    if trainer.saves is not None:
        beat = partial(observers.heartbeat.beat, state.step, SAVE)
        deadline = Deadline(t.upload_timeout or AFTER_STOP_SECONDS, lambda: signals.since)
        # Uploads in the background go on after the last step; the heartbeat says that the rank is alive
        # meanwhile.
        if not trainer.saves.finish(beat, deadline):
            outcome = "stopped"  # also where the signal came after the last step: a resume uploads
    # What ran in fact, and how long it was compiled
    startup.log_models(trainer, observers, ("attention", "decoding", "compile"))
    if outcome != "stopped":
        run.load_best(world, resumes.reader.path.parent if resumes.reader else run.run_dir.checkpoints)
    return outcome
