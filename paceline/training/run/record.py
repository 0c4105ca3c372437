"""One run on one rank: plan, directory, logs, resumed checkpoint and result."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch.distributed as dist
from filelock import FileLock, Timeout

from paceline.checkpoint.node_local.resume import NodesResume
from paceline.checkpoint.node_local.shared_disks import Disks, find_disks
from paceline.config.schema import Config
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import BusyError, CheckpointError, PacelineError
from paceline.core.files import refusal_of
from paceline.core.json_types import JsonObject
from paceline.core.rundir import RunDir
from paceline.data.prepare.prepare import Prepared
from paceline.launch import codes as launch_codes
from paceline.launch.calibrate_site import write_measured
from paceline.launch.claim_run_dir import claim, in_use
from paceline.launch.prediction_ledger import before_training
from paceline.launch.program import lost_output
from paceline.launch.supervision.worker_channel import LauncherConnection
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.plan import Plan
from paceline.plan.plan_json import from_json
from paceline.runlog import events
from paceline.runlog.effective_time import effective_time
from paceline.runlog.lines import overview_line
from paceline.runlog.redact import Redactor
from paceline.runlog.result import write_result
from paceline.runlog.stacks import stacks_to
from paceline.runtime.failures.liveness_socket import own_address
from paceline.runtime.process_group.world import RankEnv, World
from paceline.training import codes
from paceline.training.checkpointing.contents import run_state
from paceline.training.checkpointing.resume import ResumeCandidates, open_resume
from paceline.training.checkpointing.resume_compatibility import best_is_gone
from paceline.training.loop.time_bands import Bands, bands_of_ranks, stragglers
from paceline.training.loop.trainer import Trainer, ended_early
from paceline.training.rank_arguments import Start
from paceline.training.rank_checks import check_same, on_other_disks, share_plan
from paceline.training.reporting.observers import Observers


@dataclass
class RunRecord:
    """One run on one rank.

    ``plan`` and ``run_dir`` become rank 0's when the ranks agree; the steps of ``training/worker.py`` fill in
    empty fields. ``checkpoint``: the path of the last durable one.
    """

    start: Start
    env: RankEnv
    plan: Plan
    environ: Mapping[str, str]
    line: LauncherConnection
    prepared: Prepared
    prepare_seconds: float
    hosted: dist.Store | None = None  # where this process hosts the store since before the data
    started: float = field(default_factory=time.monotonic)  # a clock that is set meanwhile does not count
    disks: Disks = field(init=False)
    nodes: NodesResume | None = None  # where the nodes do not share the run directory
    observers: Observers | None = None
    trainer: Trainer | None = None
    lock: FileLock | None = None
    checkpoint: str = ""
    bands: list[Bands] = field(default_factory=list)  # of all ranks, at the end

    def __post_init__(self) -> None:
        self.run_dir = RunDir.at(self.plan.run_dir)
        self.disks = Disks.one(self.env.world_size)
        rollout = self.config.training.rollout
        keys = [server.api_key_env for server in rollout.all_servers] if rollout else []
        keys += [str(reward.options.get("api_key_env", "")) for reward in rollout.rewards] if rollout else []
        # By value: no message may show what these variables hold.
        self.redact = Redactor.of(self.environ, *(key or "" for key in keys))

    @property
    def config(self) -> Config:
        return self.start.config

    @property
    def leaves_threads(self) -> bool:
        """Whether an abandoned upload or tracker may still run."""
        saves = self.trainer.saves if self.trainer is not None else None
        abandoned = self.observers is not None and bool(self.observers.abandoned)
        return abandoned or (saves is not None and saves.uploads_left)

    def agree_on_plan(self, world: World) -> None:
        """Use rank 0's plan on every rank, and claim the run directory unless the parent did (on each disk,
        if the nodes do not share it). Collective.
        """

        # Runs on rank 0 alone, whose errors every rank then raises.
        def make() -> JsonObject:
            plan = self.plan.to_json()
            if self.start.plan is None:
                self.create_run_dir(plan)
                print(before_training(self.plan, self.environ), end="", flush=True)  # no parent printed it
            self.lock_run_dir()
            return plan

        def take() -> None:
            self.create_run_dir(plan)
            self.lock_run_dir()

        plan = share_plan(world, make)
        check_same(world, self.config, self.prepared.fingerprint)
        self.plan = Plan.from_json(plan)
        self.run_dir = RunDir.at(self.plan.run_dir)
        self.disks = find_disks(world, self.run_dir.root, first_on_node=world.local_rank == 0)
        on_other_disks(world, self.disks, take)
        if world.num_nodes > 1 and self.disks.leads(world.rank):
            with suppress(OSError):  # then the next start takes them for apart, which costs it a look
                self.disks.remember(self.run_dir)

    def open_observers(self, world: World) -> Observers:
        """Open this rank's logs, and send native crash reports there.

        Raises PacelineError if the system refuses.
        """
        run, leads = self.run_dir, world.local_rank == 0
        try:
            observers = Observers(run, world.rank, self.config, self.environ, self.redact, leads=leads)
            self.observers = observers
            stacks_to(self.run_dir.rank_log(world.rank))
        except OSError as error:
            why = refusal_of(error, self.run_dir.root)
            raise PacelineError(
                launch_codes.RUN_NOT_WRITABLE(
                    f"the logs of rank {world.rank} cannot be opened:"
                    f" {why.reason if why else error.strerror or error}",
                    str(error.filename or self.run_dir.root),
                    str(error),
                    why.hint if why else "check the disk and its file system",
                )
            ) from error
        return observers

    def find_resume(self, world: World, observers: Observers, where: str | None) -> ResumeCandidates:
        """Open the checkpoint ``where``, compare it with this run, and take its plan. Collective."""
        env = self.env
        now = run_state(self.plan, self.prepared)
        if not self.disks.are_one:
            self.nodes = NodesResume(
                world,
                self.disks,
                lambda peer_host: own_address(peer_host or env.meeting_host, env.master_port),
                world.secret,
            )
        resumes = ResumeCandidates(
            lambda damaged: open_resume(world, where, self.run_dir, self.plan, now, damaged, self.nodes),
            observers.note,
        )
        self.plan = resumes.plan
        return resumes

    def end_resume(self, world: World, observers: Observers, resumes: ResumeCandidates) -> None:
        """Record what was loaded, and close the connections to other nodes' files. Collective."""
        self.checkpoint = str(resumes.reader.path) if resumes.reader else ""
        if self.nodes is not None:
            for note in self.nodes.notes:
                observers.note(note)
            if not algorithm_spec(self.plan.algorithm).on_policy:  # who draws reads on in a window
                world.barrier()  # all have loaded: nobody asks for a file any more
                self.nodes.close()
        # One rank a disk writes.
        if self.disks.leads(world.rank):
            resumes.mark()

    def start_event(self, world: World, step: int, total: int, setup: float | None) -> events.RunStarted:
        """Return the event of a start after ``step`` of ``total`` steps, ``setup`` seconds after it began."""
        digest, saved = self.plan.digest(), self.checkpoint or None
        return events.RunStarted(digest, world.world_size, saved, step, total, self.plan.headline(), setup)

    def train_with(self, trainer: Trainer) -> Trainer:
        """Keep the trainer that this run has been built into; return it."""
        self.trainer = trainer
        return trainer

    def create_run_dir(self, plan: JsonObject) -> None:
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

    def lock_run_dir(self) -> None:
        """Lock the run directory until this rank ends, and remove the result of an earlier attempt."""
        self.lock = FileLock(str(self.run_dir.lock))
        try:
            self.lock.acquire(timeout=0)
        except Timeout:
            raise BusyError(in_use(self.run_dir)) from None
        # a reader must not take it for this attempt's
        self.run_dir.result_json.unlink(missing_ok=True)

    def published(self, event: events.CheckpointSaved, notes: Sequence[Diagnostic]) -> None:
        """Record a durable checkpoint."""
        assert self.observers is not None
        self.checkpoint = event.path
        self.observers.hear(event)
        for note in notes:
            self.observers.note(note)

    def load_best(self, world: World, resumed_from: Path) -> None:
        """With load_best_model_at_end, make the best checkpoint the run's result.

        It may be next to the checkpoint ``resumed_from``. Raises CheckpointError if it is gone.
        """
        assert self.trainer is not None and self.observers is not None
        state = self.trainer.state
        if not self.config.training.load_best_model_at_end or state.best_step is None:
            return
        best = self.run_dir.checkpoint(state.best_step)
        for folder in (best, resumed_from / best.name):
            if world.any(folder.is_dir()):
                break
        else:
            raise CheckpointError(best_is_gone(best))
        if world.rank == 0:
            self.observers.message(
                f"best: step {state.best_step}, {self.trainer.best.metric} {state.best_metric:.4g};"
                " `paceline export` uses it"
            )
        self.checkpoint = str(folder)

    def finish(self, world: World, outcome: str, code: int) -> None:
        """Write the result durably, then tear down. Collective."""
        trainer, observers = self.trainer, self.observers
        assert trainer is not None and observers is not None
        if self.nodes is not None:
            self.nodes.close()
        self.bands = [from_json(Bands, data) for data in world.all_gather_json(trainer.bands.total.to_json())]
        late = [straggler.finding() for straggler in stragglers(self.bands)]
        findings = [*trainer.learning.at_end(), *late, *filter(None, (lost_output(),))]
        for finding in findings:
            observers.note(finding)
        observers.check_place()
        if world.rank == 0:
            if outcome == "early_stopped":
                observers.message(ended_early(trainer))
            self._write_result(outcome, code, [*findings, *filter(None, (observers.log.lost(),))])
            if outcome == "completed" and (compared := self._compared()):
                observers.message(overview_line("the plan", compared))
        seconds = time.monotonic() - self.started
        observers.finish(events.Finished(outcome, trainer.state.step, seconds), self.checkpoint)
        trainer.runner.strategy.close()
        world.barrier()

    def _compared(self) -> str:
        """Write what was measured beside the plan, and return it as text: it never fails a run."""
        try:
            return write_measured(self.plan, self.environ).beside()
        except OSError as error:
            return f"{self.run_dir.measured_json.name} cannot be written: {error.strerror or error}"

    def _write_result(self, outcome: str, code: int, findings: Sequence[Diagnostic]) -> None:
        """Raise PacelineError if the system refuses: a run without a result has not succeeded."""
        try:
            self.write_result(outcome, code, findings)
        except OSError as error:
            why = refusal_of(error, self.run_dir.root)
            raise PacelineError(
                codes.RUN_RESULT_LOST(
                    f"training has ended ({outcome}), but its result could not be written:"
                    f" {why.reason if why else error.strerror or error}",
                    str(self.run_dir.result_json),
                    f"durable: {self.checkpoint}" if self.checkpoint else "no checkpoint was saved",
                    why.hint if why else "check the disk and its file system",
                )
            ) from error

    def write_result(self, outcome: str, code: int, findings: Sequence[Diagnostic]) -> None:
        """Write result.json. Raises OSError."""
        facts: JsonObject = {
            **(self.trainer.state.facts() if self.trainer else {}),
            "seconds": round(time.monotonic() - self.started, 3),
            "checkpoint": self.checkpoint,
            "world_size": self.plan.world_size,
            "strategy": self.plan.strategy,
            "plan_digest": self.plan.digest(),
            "load_best_model_at_end": self.config.training.load_best_model_at_end,
            "time_bands": bands_of_ranks(self.bands),
            "effective_time": effective_time(self.run_dir, time.time()),
        }
        write_result(self.run_dir, outcome, code, facts, findings, redact=self.redact)
