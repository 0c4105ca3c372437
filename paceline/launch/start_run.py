"""From a worker's command to a running job: port, specs, supervisor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from paceline.core.rundir import RunDir
from paceline.launch.addresses import await_node_0
from paceline.launch.launchers.registry import ALONE, LAUNCHERS
from paceline.launch.ports import check_cluster, resolve_port
from paceline.launch.process_spec import Cluster, LaunchSpec
from paceline.launch.run_secret import handed_out
from paceline.launch.supervision.exit_record import LaunchRecord
from paceline.launch.supervision.supervisor import report_to_stderr, run
from paceline.runlog.redact import Redactor


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
