"""The ``deepspeed`` launcher's command, and what DeepSpeed reads from the environment alone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from paceline.launch.ports import DEFAULT_PORT
from paceline.launch.spec import Cluster


def publish(values: Mapping[str, str]) -> None:
    """Set environment variables of this process that are not there yet: DeepSpeed reads device kind and ranks nowhere else."""
    for name, value in values.items():
        os.environ.setdefault(name, value)


def argv(
    script: Sequence[str],
    cluster: Cluster,
    *,
    hostfile: str | None = None,
    use_cpu: bool = False,
) -> tuple[str, ...]:
    """``deepspeed … script``: one node by ``--num_gpus``, several from a hostfile, or each node by hand with ``--no_ssh --node_rank``.

    ``script`` is a file and its arguments, or ``--module name …`` as the launcher spells it. On a CPU the count must be given: DeepSpeed
    counts NUMA nodes there.
    """
    port = str(cluster.master_port or DEFAULT_PORT)
    several = cluster.num_nodes > 1
    count = f"--num_accelerators={cluster.nproc}" if use_cpu else f"--num_gpus={cluster.nproc}"
    place: tuple[str, ...] = (f"--master_port={port}",)
    if several:
        place = (f"--num_nodes={cluster.num_nodes}", f"--master_addr={cluster.master_addr}", *place)
        place += (f"--hostfile={hostfile}",) if hostfile else ("--no_ssh", f"--node_rank={cluster.node_rank}")
    return ("deepspeed", count, *place, *script)
