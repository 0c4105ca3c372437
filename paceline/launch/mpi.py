"""The ``mpirun`` command (Open MPI) for a job: one call starts the workers of all nodes.

Each worker reads its rank from ``OMPI_COMM_WORLD_*``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.launch.ports import DEFAULT_PORT
from paceline.launch.spec import Cluster


def argv(
    worker: Sequence[str],
    cluster: Cluster,
    *,
    hosts: Sequence[str] = (),
    env_additions: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Return ``mpirun …``; ``hosts``: the nodes if there are several, ``nproc`` slots each."""
    exported = {
        "MASTER_ADDR": cluster.master_addr,
        "MASTER_PORT": str(cluster.master_port or DEFAULT_PORT),
        **(env_additions or {}),
    }
    placement = ("-H", ",".join(f"{host}:{cluster.nproc}" for host in hosts)) if hosts else ()
    return (
        "mpirun",
        "-np",
        str(cluster.world_size),
        *placement,
        "--bind-to",
        "none",  # do not pin all threads of a process to one core
        *(part for key, value in exported.items() for part in ("-x", f"{key}={value}")),
        *worker,
    )
