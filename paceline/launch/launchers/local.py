"""Start this node's workers directly, with torch's ``env://`` rendezvous: one, or one per device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.launch.ports import gloo_interface
from paceline.launch.process_spec import Cluster, LaunchSpec, import_path, rank_environment, thread_count


def single_spec(
    worker: Sequence[str], cluster: Cluster, *, environ: Mapping[str, str], cores: int
) -> tuple[LaunchSpec, ...]:
    """Return one worker. Its rank variables are set too, to override leftovers of another launcher."""
    return (LaunchSpec(tuple(worker), {**import_path(environ), **rank_environment(cluster, 0)}),)


def spawn_specs(
    worker: Sequence[str], cluster: Cluster, *, environ: Mapping[str, str], cores: int
) -> tuple[LaunchSpec, ...]:
    """Return one spec per worker of node ``cluster.node_rank``."""
    shared = {
        **import_path(environ),
        **thread_count(environ, cores, cluster.nproc),
        **gloo_interface(cluster, environ),
    }
    return tuple(
        LaunchSpec(
            tuple(worker),
            {**shared, **rank_environment(cluster, local_rank)},
            cluster.node_rank,
            cluster.node_rank * cluster.nproc + local_rank,
        )
        for local_rank in range(cluster.nproc)
    )
