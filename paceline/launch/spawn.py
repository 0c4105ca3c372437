"""The default for several processes: this node's workers, started side by side, meeting by torch's ``env://`` rendezvous.

No agent stands between supervisor and workers, so the workers start their imports at once (an agent imports torch first: seconds),
signals reach them directly, and their exit codes come back as they are. Restarts are the supervisor's business, not an agent's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.launch.ports import gloo_interface
from paceline.launch.spec import Cluster, LaunchSpec, import_path, rank_environment, thread_count


def specs(worker: Sequence[str], cluster: Cluster, *, environ: Mapping[str, str], cores: int) -> tuple[LaunchSpec, ...]:
    """One spec a worker of node ``cluster.node_rank``."""
    shared = {**import_path(environ), **thread_count(environ, cores, cluster.nproc), **gloo_interface(cluster, environ)}
    return tuple(
        LaunchSpec(
            tuple(worker),
            {**shared, **rank_environment(cluster, local_rank)},
            cluster.node_rank,
            cluster.node_rank * cluster.nproc + local_rank,
        )
        for local_rank in range(cluster.nproc)
    )
