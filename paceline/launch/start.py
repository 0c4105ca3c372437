"""From a worker's command to a running job: port, specs, supervisor."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from paceline.core.errors import ConfigError
from paceline.core.rundir import RunDir
from paceline.launch import codes, others, single, spawn, torchrun
from paceline.launch.addresses import await_node_0
from paceline.launch.ports import check_cluster, resolve_port
from paceline.launch.record import LaunchRecord
from paceline.launch.secret import handed_out
from paceline.launch.spec import Cluster, LaunchSpec
from paceline.launch.supervise import report_to_stderr, run
from paceline.runlog.redact import Redactor


class Specs(Protocol):
    """A launcher: a pure function from a worker's command and the cluster to the processes of this node."""

    def __call__(
        self, worker: Sequence[str], cluster: Cluster, *, environ: Mapping[str, str], cores: int
    ) -> tuple[LaunchSpec, ...]: ...


#: Run the worker without a launcher, for a single process.
ALONE = "single"
LAUNCHERS: Mapping[str, Specs] = {
    ALONE: single.specs,
    "spawn": spawn.specs,
    "torchrun": torchrun.specs,
    "mpirun": others.mpirun_specs,
    "accelerate": others.accelerate_specs,
    "deepspeed": others.deepspeed_specs,
}
OFFERED = tuple(name for name in LAUNCHERS if name != ALONE)


def launcher_for(cluster: Cluster, requested: str | None = None) -> str:
    """Return the launcher: ``requested`` if given, else ``single`` for one process and ``spawn`` for more.

    Raises ConfigError for an unknown launcher.
    """
    if requested is None:
        return ALONE if cluster.world_size == 1 else "spawn"
    if requested not in OFFERED:
        near = difflib.get_close_matches(requested, OFFERED, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"one of: {', '.join(OFFERED)}"
        raise ConfigError(codes.LAUNCH_UNKNOWN("--launcher", requested, requested=requested, hint=hint))
    return requested


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
    asks_to_stop: Callable[[], bool] = lambda: False,
) -> int:
    """Start ``worker`` (see ``spec.worker_argv``) on this node and wait; return the exit code.

    ``run_dir``: where the ranks' exits are recorded; ``output``, ``asks_to_stop``: as in ``supervise.run``.
    Raises ConfigError before anything is started.
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
    if threads:
        report(
            f"OMP_NUM_THREADS={threads}: {cores} cores shared by {cluster.nproc} processes (set it yourself"
            " to change this)"
        )
    record = LaunchRecord(run_dir, cluster.node_rank, Redactor.of(environ)) if run_dir is not None else None
    with handed_out(environ, cluster.num_nodes, cluster.world_size) as secret:
        return run(
            specs,
            environ={**environ, **secret},
            report=report,
            record=record,
            output=output,
            asks_to_stop=asks_to_stop,
        )
