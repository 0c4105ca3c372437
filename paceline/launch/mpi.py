"""The same start written for ``mpirun`` (Open MPI): it starts all nodes' workers, and each reads its rank from ``OMPI_COMM_WORLD_*``."""

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
    """``mpirun …``; ``hosts`` names the nodes when there is more than one, ``nproc`` slots each."""
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
        "none",  # threads of one process must not be pinned to one core
        *(part for key, value in exported.items() for part in ("-x", f"{key}={value}")),
        *worker,
    )
