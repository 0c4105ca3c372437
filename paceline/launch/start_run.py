"""A run that may start: checked and planned, nothing written yet; then its directory is claimed, and its
ranks are started and supervised.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.config.registries.object_store_url import is_url
from paceline.config.sections.training_steps import AUTO_RESUME
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ConfigError, PacelineError
from paceline.core.rundir import RunDir
from paceline.core.security.file_permissions import written_for
from paceline.launch import codes
from paceline.launch.claim_run_dir import WAIT_SECONDS, check_run_dir, claim
from paceline.launch.elastic_start import ElasticStart
from paceline.launch.environment.device_variables import QUIET_TORCH, device_settings
from paceline.launch.environment.job_managers import nodes_of_torchrun
from paceline.launch.launch_record import StopRequests
from paceline.launch.launchers import ALONE, LAUNCHERS, launcher_for
from paceline.launch.network import DEFAULT_PORT, await_node_0, check_cluster, resolve_port
from paceline.launch.preflight.child_checks import check_bytes, from_object_storage
from paceline.launch.preflight.plan_job import cluster_of, located, planned
from paceline.launch.process_spec import (
    Cluster,
    LaunchOptions,
    LaunchSpec,
    import_path,
    malloc_settings,
    module_argv,
    rank_environment,
    worker_argv,
)
from paceline.launch.run_secret import secret_environment
from paceline.launch.supervision.exit_record import LaunchRecord
from paceline.launch.supervision.generation_servers import server_specs, serving, start_of
from paceline.launch.supervision.membership import Lineup
from paceline.launch.supervision.restarts import Restarts, RunEnd, wait
from paceline.launch.supervision.spare import Spares
from paceline.launch.supervision.supervisor import report_to_stderr, run
from paceline.plan.hardware.probe import cpu_count
from paceline.plan.mesh import resplit
from paceline.rules import at_start
from paceline.runlog.lines import is_verbose
from paceline.runlog.redact import Redactor

if TYPE_CHECKING:
    from paceline.config.load import Loaded
    from paceline.config.sections.launch import LaunchSection
    from paceline.plan.plan import Plan

_NOTICE_SECONDS = 90.0  # torch is imported, then rendezvous.HOST_SECONDS


@dataclass(frozen=True)
class CheckedRun:
    """``warnings``: findings of the checks that do not stop it. ``config_file``: None if a program gave the
    config; ``settings``: additional environment variables of the ranks. ``fewer``: what a start with fewer
    nodes overrides, by their number.
    """

    loaded: Loaded
    options: LaunchOptions
    plan: Plan
    warnings: tuple[Diagnostic, ...]
    cluster: Cluster
    launcher: str
    cores: int
    settings: Mapping[str, str]
    config_file: Path | None
    overrides: Sequence[str] = ()
    fewer: Mapping[int, Sequence[str]] = field(default_factory=dict)

    @property
    def run_dir(self) -> RunDir:
        return RunDir.at(self.plan.run_dir)

    @property
    def leads(self) -> bool:
        """Whether this is the first node, which records the run."""
        return self.cluster.node_rank == 0

    def commands(self) -> tuple[LaunchSpec, ...]:
        """Return the commands that a start would run on this node; they read the YAML."""
        cluster, worker = resolve_port(self.cluster), worker_argv(*self._yaml_arguments())
        return make_specs(
            self.launcher, worker, cluster, environ=os.environ, cores=self.cores, settings=self.settings
        )

    def servers(self) -> tuple[LaunchSpec, ...]:
        """Return the generation servers that a start would run."""
        return server_specs(self.loaded.config, self.plan, os.environ)

    def claim(self, spares: Spares | None = None) -> tuple[Diagnostic, ...]:
        """Verify the checkpoint to resume from, on the first node, and claim the run directory.

        ``spares``: where the check may run. Returns notes. Raises ConfigError and CheckpointError.
        """
        training, several = self.loaded.config.training, self.plan.num_nodes > 1
        resume = self._resume
        # Before the claim: a refused resume leaves the directory as it was.
        if resume and self.leads:
            with reported_to_other_nodes(self.loaded.config.launch), located(self.loaded):
                forked = (spares or Spares(False)).run_job
                check_bytes(str(resume), self.run_dir, several=several, forked=forked)
        # With several nodes the ranks claim it, once all have met.
        if several:
            return ()
        with written_for(self.run_dir.root, training.output_access):
            return claim(
                self.run_dir,
                plan=self.plan.to_json(),
                config_file=None if self.config_file is None else str(self.config_file),
                overwrite=training.overwrite_output_dir,
                resume=bool(resume),
                redact=Redactor.of(os.environ),
            )

    def start(
        self,
        *,
        environ: Mapping[str, str] | None = None,
        report: Callable[[str], None] = report_to_stderr,
        output: int | None = None,
        requests_stop: Callable[[], bool] = lambda: False,
    ) -> int:
        """Start this node's ranks, wait for them, record the run; return the exit code.

        ``environ``: variables for the ranks in addition to this process's; ``output``, ``requests_stop``: as
        in ``supervisor.run``.
        """
        from paceline.launch.prediction_ledger import record

        variables = {**os.environ, **(environ or {})}
        start, stopped = start_of(self.loaded.config), StopRequests(self.run_dir)
        launched = self.loaded.config.launch
        # Without restarts nobody would ever fork from it.
        spares = Spares(bool(launched.max_restarts or launched.nodes), self._settings_of_ranks(variables))

        def stops() -> bool:
            return requests_stop() or stopped()

        def attempt(ready: CheckedRun, stops: Callable[[], bool] = stops) -> int:
            # On several nodes each rank plans from the YAML, and rank 0's plan is compared with theirs.
            read_plan = ready.plan.num_nodes == 1
            arguments = ["--plan", str(ready.run_dir.plan_json)] if read_plan else ready._yaml_arguments()
            return launch(
                worker_argv(*arguments),
                ready.cluster,
                launcher=ready.launcher,
                environ=variables,
                cores=ready.cores,
                settings=ready.settings,
                report=report,
                run_dir=ready.run_dir,
                output=output,
                requests_stop=stops,
                spares=spares,
            )

        with (
            located(self.loaded),
            closing(spares),
            serving(self.servers(), start, self.run_dir, variables, report),
        ):
            if self.loaded.config.launch.nodes is None:
                code = self._start_until_done(attempt, stops, report, spares)
            else:
                code = self._start_with_nodes(attempt, stops, report)
        if code == 0 and self.leads:
            record(self.plan)
        return code

    def _start_until_done(
        self,
        attempt: Callable[[CheckedRun], int],
        stops: Callable[[], bool],
        report: Callable[[str], None],
        spares: Spares,
    ) -> int:
        """Start, and start again after what can heal (``launch.max_restarts``); return the exit code."""
        code = attempt(self)
        restarts = Restarts(self.loaded.config.launch.max_restarts or 0)
        while (note := restarts.after(end := self._end(code))) is not None:
            report(note.render())
            self._note(note)
            if note.severity is Severity.ERROR:
                break
            if not wait(restarts.pause, stops):
                break  # stopped, but as what it is: failed
            # Before the first save of this start, the checkpoint that it began from.
            again = self._resumed(AUTO_RESUME if end.saved else self._resume or AUTO_RESUME)
            for finding in again.claim(spares):
                report(finding.render())
            code = attempt(again)
        return code

    def _start_with_nodes(
        self,
        attempt: Callable[[CheckedRun, Callable[[], bool]], int],
        stops: Callable[[], bool],
        report: Callable[[str], None],
    ) -> int:
        """Start with the nodes that are there, as often as it is due (``launch.nodes``)."""

        def once(lineup: Lineup, stops: Callable[[], bool]) -> RunEnd:
            ready = self._with_nodes(lineup)
            return ready._end(attempt(ready, stops))

        return ElasticStart(self.loaded.config.launch, once, stops, report, self._note).run()

    def _with_nodes(self, lineup: Lineup) -> CheckedRun:
        """Return the same run as a start of these nodes."""
        count, run = len(lineup.nodes), self._resumed(AUTO_RESUME) if lineup.resumes else self
        place = lineup.nodes.index(self.cluster.node_rank)
        return replace(
            run,
            cluster=replace(self.cluster, num_nodes=count, node_rank=place),
            options=replace(run.options, nnodes=count),
            overrides=(*run.overrides, *self.fewer.get(count, ())),
        )

    def _note(self, finding: Diagnostic) -> None:
        record = LaunchRecord(self.run_dir, self.cluster.node_rank, Redactor.of(os.environ))
        record.note(self._first_rank, finding)

    @property
    def _resume(self) -> str | None:
        return self.loaded.config.training.resume_from_checkpoint

    def _resumed(self, resume: str) -> CheckedRun:
        """Return the same run as a start that goes on from the checkpoint ``resume``."""
        training = {"resume_from_checkpoint": resume, "overwrite_output_dir": False}
        section = self.loaded.config.training.model_copy(update=training)
        config = self.loaded.config.model_copy(update={"training": section})
        return replace(
            self,
            loaded=replace(self.loaded, config=config),
            options=replace(self.options, resume=resume),
            plan=replace(self.plan, config=config),
            # A restart must not take the directory for one to be overwritten.
            overrides=(*self.overrides, "training.overwrite_output_dir=false"),
        )

    def _settings_of_ranks(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return what a rank sets before it imports torch, for a spare that imports it beforehand."""
        plan, deterministic = self.plan, self.loaded.config.training.full_determinism
        settings = device_settings(
            environ, plan.device, plan.world_size, self.run_dir, deterministic=deterministic
        )
        quiet = {} if is_verbose(environ) else QUIET_TORCH
        return {**quiet, **{name: value for name, (value, _) in settings.items()}}

    @property
    def _first_rank(self) -> int:
        return self.cluster.node_rank * self.cluster.nproc

    def _end(self, code: int) -> RunEnd:
        return RunEnd.of(self.run_dir, code, self.cluster.node_rank, self._first_rank)

    def _yaml_arguments(self) -> list[str]:
        assert self.config_file is not None
        return outside_arguments(self.config_file, self.overrides, replace(self.options, node_rank=None))


def check_run(
    loaded: Loaded,
    options: LaunchOptions,
    config_file: Path | None,
    overrides: Sequence[str] = (),
    *,
    starts: bool = True,
) -> CheckedRun:
    """Check and plan a run on this machine; if it ``starts``, first download the checkpoint to resume from.

    Raises ConfigError with every error that can be found before a process starts or a file is written. Other
    nodes that wait for this one get the error too.
    """
    config, training = loaded.config, loaded.config.training
    with reported_to_other_nodes(config.launch) if starts else nullcontext():
        notes: tuple[Diagnostic, ...] = ()
        if starts:
            leads = config.launch.node_rank == 0
            with located(loaded):
                # A run directory of another run is refused before anything is written there
                if leads and (training.checkpoint_url or is_url(training.resume_from_checkpoint)):
                    check_run_dir(RunDir.at(config.run_directory()), training, WAIT_SECONDS)
                notes = from_object_storage(config, leads=leads, several=config.launch.nnodes > 1)
        plan, warnings = planned(loaded, launcher=options.launcher)
        if refused := at_start((*notes, *warnings)):
            raise ConfigError(*refused)
        cluster = cluster_of(config, plan)
        if cluster.num_nodes == 1 and (nodes := nodes_of_torchrun(os.environ)) > 1:
            raise ConfigError(codes.LAUNCH_TORCHRUN_WORLD("--nnodes", "1", nodes=nodes))
        launcher, cores = launcher_for(cluster, options.launcher), cpu_count()
        # raises if it cannot start
        make_specs(launcher, worker_argv(), cluster, environ=os.environ, cores=cores)
        if cluster.node_rank == 0:
            check_run_dir(RunDir.at(plan.run_dir), training, WAIT_SECONDS if starts else 0.0)
        settings = malloc_settings(os.environ) if plan.device == "cpu" else {}
        return CheckedRun(
            loaded,
            options,
            plan,
            (*notes, *warnings),
            cluster,
            launcher,
            cores,
            settings,
            config_file,
            overrides,
            _with_fewer_nodes(loaded, plan, launcher),
        )


def _with_fewer_nodes(loaded: Loaded, plan: Plan, launcher: str) -> dict[int, Sequence[str]]:
    """Return what keeps the rows of a step with fewer nodes. Raises ConfigError if they do not divide."""
    launch, fewer = loaded.config.launch, dict[int, Sequence[str]]()
    least, most = launch.range_of_nodes
    if launch.nodes is not None and launch.nnodes != most:
        raise ConfigError(codes.LAUNCH_NODES_RANGE("launch.nodes", f"nnodes: {launch.nnodes}", most=most))
    for count in range(least, most):
        section = launch.model_copy(update={"nnodes": count, "node_rank": 0})
        config = loaded.config.model_copy(update={"launch": section})
        smaller, _ = planned(replace(loaded, config=config), launcher=launcher, imports=False)
        with located(loaded):
            split = resplit(plan.batch.global_batch, smaller.batch.data_parallel_size, plan.batch.micro_batch)
        fewer[count] = (
            f"training.per_device_train_batch_size={split.micro_batch}",
            f"training.gradient_accumulation_steps={split.accumulation}",
        )
    return fewer


def outside_arguments(config_file: Path, overrides: Sequence[str], options: LaunchOptions) -> list[str]:
    """Return the arguments of a worker that reads the YAML itself."""
    settings = [*overrides, *(f"{key}={value}" for key, value in options.flags().items())]
    return ["--config", str(config_file), *(part for setting in settings for part in ("--set", setting))]


@contextmanager
def reported_to_other_nodes(launch: LaunchSection) -> Iterator[None]:
    """Report an error inside the block to the ranks of other nodes, which would wait for this one."""
    try:
        yield
    except PacelineError as error:
        finding = error.diagnostics[0]
        # without an address of node 0 there is nobody to tell
        if launch.nnodes > 1 and finding.code != codes.LAUNCH_MASTER_ADDR.name:
            report_to_stderr(
                f"node {launch.node_rank} is refused ({finding.what}) and tells the nodes that wait for"
                " it or start within a minute; Ctrl-C ends this"
            )
            cluster = Cluster.of(launch)
            # The port at which the others wait if none was set.
            cluster = replace(cluster, master_port=cluster.master_port or DEFAULT_PORT)
            message = {"rank": 0, "exit_code": 0, "diagnostic": finding.to_json()}
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    module_argv("paceline.runtime.process_group.rendezvous"),
                    input=json.dumps(message, default=str).encode(),
                    # As the rank that the others wait for, since they listen to nobody else.
                    env={**os.environ, **import_path(os.environ), **rank_environment(cluster, 0)},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=_NOTICE_SECONDS,
                    check=False,
                )
        raise


def make_specs(
    launcher: str,
    worker: Sequence[str],
    cluster: Cluster,
    *,
    environ: Mapping[str, str],
    cores: int,
    settings: Mapping[str, str] | None = None,
) -> tuple[LaunchSpec, ...]:
    """Return this node's processes, with ``settings`` added to the environment of each.

    Reads only the route table. Raises ConfigError for impossible numbers, or a launcher that is not
    installed.
    """
    check_cluster(cluster)
    specs = LAUNCHERS[launcher](worker, cluster, environ=environ, cores=cores)
    return tuple(replace(spec, env_additions={**(settings or {}), **spec.env_additions}) for spec in specs)


def launch(
    worker: Sequence[str],
    cluster: Cluster,
    *,
    launcher: str,
    environ: Mapping[str, str],
    cores: int,
    settings: Mapping[str, str] | None = None,
    report: Callable[[str], None] = report_to_stderr,
    run_dir: RunDir | None = None,
    output: int | None = None,
    requests_stop: Callable[[], bool] = lambda: False,
    spares: Spares | None = None,
) -> int:
    """Start ``worker`` (see ``process_spec.worker_argv``) on this node and wait; return the exit code.

    ``run_dir``: where the ranks' exits are recorded; ``output``, ``requests_stop``, ``spares``: as in
    ``supervisor.run``. Raises ConfigError before anything is started.
    """
    check_cluster(cluster)
    if launcher != ALONE:
        cluster = resolve_port(cluster)
    if cluster.num_nodes > 1:
        report(
            f"node {cluster.node_rank} of {cluster.num_nodes} connects to the others at"
            f" {cluster.master_addr}:{cluster.master_port}; address and port must be the same on"
            " every node"
        )
        await_node_0(cluster, report)
    specs = make_specs(launcher, worker, cluster, environ=environ, cores=cores, settings=settings)
    threads = specs[0].env_additions.get("OMP_NUM_THREADS")
    if threads and is_verbose(environ):
        report(
            f"OMP_NUM_THREADS={threads}: {cores} cores shared by {cluster.nproc} processes (set it yourself"
            " to change this)"
        )
    record = LaunchRecord(run_dir, cluster.node_rank, Redactor.of(environ)) if run_dir is not None else None
    with secret_environment(environ, cluster.num_nodes, cluster.world_size) as secret:
        return run(
            specs,
            environ={**environ, **secret},
            report=report,
            record=record,
            output=output,
            requests_stop=requests_stop,
            spares=spares,
        )
