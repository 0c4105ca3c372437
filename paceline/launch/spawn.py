"""The default launcher: start this node's workers directly, with torch's ``env://`` rendezvous.

Without an agent between supervisor and workers, imports start at once (an agent first imports torch:
seconds), signals reach the workers directly, and their exit codes come back unchanged. Restarts are left to
the supervisor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.launch.ports import gloo_interface
from paceline.launch.spec import Cluster, LaunchSpec, import_path, rank_environment, thread_count


def specs(
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
