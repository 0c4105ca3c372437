"""Start a run from the command line: config → plan → run directory → processes → exit code."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from paceline.cli.launch_options import LaunchOptions
from paceline.cli.options import load_to_start
from paceline.cli.report import print_diagnostics
from paceline.core.errors import ConfigError
from paceline.core.private import written_for
from paceline.core.rundir import RunDir
from paceline.launch.before.planned import cluster_of, merged, planned
from paceline.rules import at_start
from paceline.runlog.redact import Redactor

if TYPE_CHECKING:
    from paceline.config.load import Loaded
    from paceline.config.source import Source
    from paceline.launch.spec import Cluster
    from paceline.plan.plan import Plan


T = TypeVar("T")


def start(
    config_file: Path,
    overrides: Sequence[str],
    options: LaunchOptions,
    *,
    dry_run: bool = False,
    one_process: bool = False,
) -> int:
    """Run a training to its end and return its exit code. Raises ConfigError before any process starts.

    ``one_process``: use one process unless the config sets ``launch.nproc``, whatever the machine has.
    """
    from paceline.launch.claim import check_claim
    from paceline.launch.spec import malloc_settings, worker_argv
    from paceline.launch.start import launch, launcher_for, make_specs
    from paceline.plan.explain import explain
    from paceline.plan.hardware.probe import cpu_count

    # Everything that can be refused is refused before any process starts or a file is written
    options, loaded = _loaded(config_file, overrides, options, one_process)
    plan, warnings = planned(loaded, launcher=options.launcher)
    if refused := at_start(warnings):
        raise ConfigError(*refused)
    cluster = cluster_of(loaded.config, plan)
    launcher, cores = launcher_for(cluster, options.launcher), cpu_count()
    make_specs(launcher, worker_argv(), cluster, environ=os.environ, cores=cores)  # raises if it cannot start
    run_dir, training = RunDir.at(plan.run_dir), loaded.config.training
    if cluster.node_rank == 0:
        resume = bool(training.resume_from_checkpoint)
        check_claim(run_dir, overwrite=training.overwrite_output_dir, resume=resume)
    # Print the plan; a dry run ends here
    print_diagnostics((*loaded.notes, *warnings))
    print(explain(plan), end="", flush=True)
    settings = malloc_settings(os.environ) if plan.device == "cpu" else {}
    if dry_run:  # no plan.json is written: the printed commands read the YAML
        arguments = outside_arguments(config_file, overrides, replace(options, node_rank=None))
        print_commands(launcher, worker_argv(*arguments), cluster, cores, settings)
        return 0
    _claim(loaded, plan, config_file, first=cluster.node_rank == 0)
    # Start the workers, wait for them, and record the run
    worker = worker_argv(*worker_arguments(config_file, overrides, options, plan))
    code = with_lines(
        lambda: launch(
            worker,
            cluster,
            launcher=launcher,
            environ=os.environ,
            cores=cores,
            settings=settings,
            run_dir=run_dir,
        ),
        loaded.provenance,
    )
    if code == 0 and cluster.node_rank == 0:
        from paceline.cli.ledger import record

        record(plan)
    return code


def _loaded(
    config_file: Path, overrides: Sequence[str], options: LaunchOptions, one_process: bool
) -> tuple[LaunchOptions, Loaded]:
    """Return the options and the config; ``one_process`` is one where the config does not set how many."""
    loaded = load_to_start(config_file, overrides, options.flags())
    if not one_process or loaded.config.launch.nproc is not None:
        return options, loaded
    options = replace(options, nproc=1)
    return options, load_to_start(config_file, overrides, options.flags())


def _claim(loaded: Loaded, plan: Plan, config_file: Path, *, first: bool) -> None:
    """Verify the checkpoint to resume from, on the ``first`` node, and claim the run directory."""
    from paceline.launch.before.beforehand import check_bytes
    from paceline.launch.claim import claim

    training, run_dir = loaded.config.training, RunDir.at(plan.run_dir)
    resume = bool(training.resume_from_checkpoint)
    if resume and first:
        with_lines(lambda: check_bytes(str(training.resume_from_checkpoint), run_dir), loaded.provenance)
    if plan.num_nodes == 1:
        with written_for(run_dir.root, training.output_access):
            notes = claim(
                run_dir,
                plan=plan.to_json(),
                config_file=str(config_file),
                overwrite=training.overwrite_output_dir,
                resume=resume,
                redact=Redactor.of(os.environ),
            )
        print_diagnostics(notes)


def with_lines(do: Callable[[], T], provenance: Mapping[str, Source]) -> T:
    """Return ``do()``, adding the YAML line to the findings of a ConfigError it raises."""
    try:
        return do()
    except ConfigError as error:
        raise ConfigError(*merged((), error.diagnostics, provenance)) from error


def worker_arguments(
    config_file: Path, overrides: Sequence[str], options: LaunchOptions, plan: Plan
) -> list[str]:
    """Return the arguments of the workers.

    On one node they read our plan.json. On several nodes each worker reads the YAML, and rank 0 broadcasts
    its plan.
    """
    if plan.num_nodes == 1:
        return ["--plan", str(RunDir.at(plan.run_dir).plan_json)]
    return outside_arguments(config_file, overrides, replace(options, node_rank=None))


def outside_arguments(config_file: Path, overrides: Sequence[str], options: LaunchOptions) -> list[str]:
    """Return the arguments of a worker that reads the YAML itself."""
    settings = [*overrides, *(f"{key}={value}" for key, value in options.flags().items())]
    return ["--config", str(config_file), *(part for setting in settings for part in ("--set", setting))]


def print_commands(
    launcher: str, worker: Sequence[str], cluster: Cluster, cores: int, settings: Mapping[str, str]
) -> None:
    """Print the commands that would be started on this node, as shell lines."""
    from paceline.launch.ports import resolve_port
    from paceline.launch.start import make_specs

    for spec in make_specs(
        launcher, worker, resolve_port(cluster), environ=os.environ, cores=cores, settings=settings
    ):
        print(spec.shell_line())
