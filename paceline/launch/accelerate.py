"""The ``accelerate launch`` command for a job (Accelerate runs torchrun's agent internally)."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.launch.ports import DEFAULT_PORT
from paceline.launch.spec import Cluster


def argv(script: Sequence[str], cluster: Cluster, *, use_cpu: bool) -> tuple[str, ...]:
    """Return the ``accelerate launch …`` command.

    ``script``: a file and its arguments, or ``-m module …``.
    """
    rendezvous = (
        f"--machine_rank={cluster.node_rank}",
        f"--main_process_ip={cluster.master_addr}",
        f"--main_process_port={cluster.master_port or DEFAULT_PORT}",
    )
    return (
        "accelerate",
        "launch",
        f"--num_processes={cluster.world_size}",
        f"--num_machines={cluster.num_nodes}",
        *(rendezvous if cluster.world_size > 1 else ()),
        "--mixed_precision=no",  # the config sets the precision; without this flag accelerate warns
        "--dynamo_backend=no",
        *(("--cpu",) if use_cpu and cluster.world_size == 1 else ()),
        # on CPUs too: with --cpu it starts a single process, whatever num_processes is
        *(("--multi_gpu",) if cluster.world_size > 1 else ()),
        *script,
    )
