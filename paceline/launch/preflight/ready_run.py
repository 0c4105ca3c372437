"""A run that may start: checked and planned, nothing written yet; then its directory is claimed, its ranks
started.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from paceline.config.registries.object_store_url import is_url
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.rundir import RunDir
from paceline.core.security.file_permissions import written_for
from paceline.launch.claim_run_dir import WAIT_SECONDS, check_claim, claim
from paceline.launch.launch_options import LaunchOptions
from paceline.launch.launchers.registry import launcher_for
from paceline.launch.other_nodes import reported_to_other_nodes
from paceline.launch.preflight.object_storage import from_object_storage
from paceline.launch.preflight.plan_job import cluster_of, merged, planned
from paceline.launch.process_spec import LaunchSpec, malloc_settings, worker_argv
from paceline.launch.start_run import launch, make_specs
from paceline.launch.supervision.supervisor import report_to_stderr
from paceline.plan.hardware.probe import cpu_count
from paceline.rules import at_start
from paceline.runlog.redact import Redactor

if TYPE_CHECKING:
    from paceline.config.load import Loaded
    from paceline.config.source import Source
    from paceline.launch.process_spec import Cluster
    from paceline.plan.plan import Plan

T = TypeVar("T")


@dataclass(frozen=True)
class Ready:
    """``warnings``: findings of the checks that do not stop it. ``config_file``: None if a program gave the
    config; ``settings``: what the ranks' environment gets in addition.
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

    @property
    def run_dir(self) -> RunDir:
        return RunDir.at(self.plan.run_dir)

    @property
    def leads(self) -> bool:
        """Whether this is the first node, which records the run."""
        return self.cluster.node_rank == 0

    def commands(self) -> tuple[LaunchSpec, ...]:
        """Return what a start would run on this node; the commands read the YAML."""
        from paceline.launch.ports import resolve_port

        assert self.config_file is not None
        arguments = outside_arguments(self.config_file, self.overrides, replace(self.options, node_rank=None))
        return make_specs(
            self.launcher,
            worker_argv(*arguments),
            resolve_port(self.cluster),
            environ=os.environ,
            cores=self.cores,
            settings=self.settings,
        )

    def claim(self) -> tuple[Diagnostic, ...]:
        """Verify the checkpoint to resume from, on the first node, and claim the run directory.

        Returns notes. Raises ConfigError and CheckpointError.
        """
        from paceline.launch.preflight.child_checks import check_bytes

        training, run_dir = self.loaded.config.training, self.run_dir
        resume = bool(training.resume_from_checkpoint)
        if resume and self.leads:
            several = self.plan.num_nodes > 1
            with reported_to_other_nodes(self.loaded.config.launch):
                with_lines(
                    lambda: check_bytes(str(training.resume_from_checkpoint), run_dir, several=several),
                    self.loaded.provenance,
                )
        if self.plan.num_nodes > 1:
            return ()
        with written_for(run_dir.root, training.output_access):
            return claim(
                run_dir,
                plan=self.plan.to_json(),
                config_file=None if self.config_file is None else str(self.config_file),
                overwrite=training.overwrite_output_dir,
                resume=resume,
                redact=Redactor.of(os.environ),
            )

    def start(
        self,
        *,
        environ: Mapping[str, str] | None = None,
        report: Callable[[str], None] = report_to_stderr,
        output: int | None = None,
        asks_to_stop: Callable[[], bool] = lambda: False,
    ) -> int:
        """Start this node's ranks, wait for them, record the run; return the exit code.

        ``environ``: variables for the ranks beside this process's; ``output``, ``asks_to_stop``: as in
        ``supervise.run``.
        """
        from paceline.launch.prediction_ledger import record

        worker = worker_argv(*self._arguments())
        code = with_lines(
            lambda: launch(
                worker,
                self.cluster,
                launcher=self.launcher,
                environ={**os.environ, **(environ or {})},
                cores=self.cores,
                settings=self.settings,
                report=report,
                run_dir=self.run_dir,
                output=output,
                asks_to_stop=asks_to_stop,
            ),
            self.loaded.provenance,
        )
        if code == 0 and self.leads:
            record(self.plan)
        return code

    def _arguments(self) -> list[str]:
        """Return the arguments of the workers.

        On one node they read our plan.json. On several nodes each worker reads the YAML, and rank 0
        broadcasts its plan.
        """
        if self.plan.num_nodes == 1:
            return ["--plan", str(self.run_dir.plan_json)]
        assert self.config_file is not None
        return outside_arguments(self.config_file, self.overrides, replace(self.options, node_rank=None))


def made_ready(
    loaded: Loaded,
    options: LaunchOptions,
    config_file: Path | None,
    overrides: Sequence[str] = (),
    *,
    starts: bool = True,
) -> Ready:
    """Check and plan a run on this machine; if it ``starts``, first bring the checkpoint to resume from onto
    its disk.

    Raises ConfigError with all that can be refused before a process starts or a file is written; other nodes
    that wait for this one hear it.
    """
    with reported_to_other_nodes(loaded.config.launch) if starts else nullcontext():
        return _made_ready(loaded, options, config_file, overrides, starts)


def _made_ready(
    loaded: Loaded, options: LaunchOptions, config_file: Path | None, overrides: Sequence[str], starts: bool
) -> Ready:
    brought = with_lines(lambda: _brought(loaded), loaded.provenance) if starts else ()
    plan, warnings = planned(loaded, launcher=options.launcher)
    warnings = (*brought, *warnings)
    if refused := at_start(warnings):
        raise ConfigError(*refused)
    cluster = cluster_of(loaded.config, plan)
    launcher, cores = launcher_for(cluster, options.launcher), cpu_count()
    make_specs(launcher, worker_argv(), cluster, environ=os.environ, cores=cores)  # raises if it cannot start
    training = loaded.config.training
    if cluster.node_rank == 0:
        resume = bool(training.resume_from_checkpoint)
        check_claim(
            RunDir.at(plan.run_dir),
            overwrite=training.overwrite_output_dir,
            resume=resume,
            wait=WAIT_SECONDS if starts else 0.0,
        )
    settings = malloc_settings(os.environ) if plan.device == "cpu" else {}
    return Ready(loaded, options, plan, warnings, cluster, launcher, cores, settings, config_file, overrides)


def _brought(loaded: Loaded) -> tuple[Diagnostic, ...]:
    """Bring the checkpoint to resume from onto this disk, if it is in object storage; return notes.

    Raises ConfigError, also if the run directory is another's: nothing is written there then.
    """
    config = loaded.config
    leads = config.launch.node_rank == 0
    if leads and (config.training.checkpoint_url or is_url(config.training.resume_from_checkpoint)):
        t = config.training
        run = RunDir.at(config.run_directory())
        resume = bool(t.resume_from_checkpoint)
        check_claim(run, overwrite=t.overwrite_output_dir, resume=resume, wait=WAIT_SECONDS)
    return from_object_storage(config, leads=leads, several=config.launch.nnodes > 1)


def with_lines(do: Callable[[], T], provenance: Mapping[str, Source]) -> T:
    """Return ``do()``, adding the YAML line to the findings of a ConfigError it raises."""
    try:
        return do()
    except ConfigError as error:
        raise ConfigError(*merged((), error.diagnostics, provenance)) from error


def outside_arguments(config_file: Path, overrides: Sequence[str], options: LaunchOptions) -> list[str]:
    """Return the arguments of a worker that reads the YAML itself."""
    settings = [*overrides, *(f"{key}={value}" for key, value in options.flags().items())]
    return ["--config", str(config_file), *(part for setting in settings for part in ("--set", setting))]
