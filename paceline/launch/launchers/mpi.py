"""The ``mpirun`` command (Open MPI or MPICH) for a job of one node.

Each worker reads its rank from ``OMPI_COMM_WORLD_*`` or ``PMI_*``.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence

from paceline.core.errors import ConfigError
from paceline.launch.launchers.agent import agent_environment, agent_spec, not_installed, refuse_several_nodes
from paceline.launch.ports import DEFAULT_PORT
from paceline.launch.process_spec import Cluster, LaunchSpec


def specs(
    worker: Sequence[str], cluster: Cluster, *, environ: Mapping[str, str], cores: int
) -> tuple[LaunchSpec, ...]:
    """Build ``mpirun`` (Open MPI or MPICH).

    Raises ConfigError if it is not installed, or for several nodes.
    """
    refuse_several_nodes(
        "mpirun", cluster, "mpirun -np PROCESSES -H HOST,HOST python main.py --config CONFIG, once"
    )
    found = shutil.which("mpirun", path=environ.get("PATH"))
    if found is None:
        raise ConfigError(not_installed("mpirun", "install the system package openmpi-bin or mpich"))
    meeting = {"MASTER_ADDR": cluster.master_addr, "MASTER_PORT": str(cluster.master_port or DEFAULT_PORT)}
    # without --bind-to none all threads of a process are pinned to one core
    argv = (found, "-np", str(cluster.nproc), "--bind-to", "none", *worker)
    return agent_spec(argv, {**meeting, **agent_environment(environ, cores, cluster)}, cluster)
