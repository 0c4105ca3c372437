"""The ``deepspeed`` launcher's command line, and variables that DeepSpeed reads from the environment only."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from paceline.core.errors import ConfigError
from paceline.launch import codes
from paceline.launch.ports import DEFAULT_PORT
from paceline.launch.spec import Cluster


def publish(values: Mapping[str, str]) -> None:
    """Set environment variables of this process if unset: DeepSpeed reads device and ranks only there."""
    for name, value in values.items():
        os.environ.setdefault(name, value)


def hostfile(hosts: Sequence[str], nproc: int) -> str:
    """Return the text of a hostfile, one line per node.

    With ``--no_ssh`` the names are not connected to, but DeepSpeed counts the nodes in them.
    """
    return "".join(f"{host} slots={nproc}\n" for host in hosts)


def argv(
    script: Sequence[str],
    cluster: Cluster,
    *,
    hostfile: str | None = None,
    ssh: bool = False,
) -> tuple[str, ...]:
    """Return ``deepspeed … script``; ``script`` is a file and its arguments, or ``--module name …``.

    The number of processes is always given: without it DeepSpeed starts one process per NUMA node on a CPU.
    Several nodes need a hostfile, even if each is started by hand (``--no_ssh --node_rank``); with ``ssh``
    node 0 starts the others with pdsh. Raises ConfigError for several nodes without a hostfile.
    """
    port = f"--master_port={cluster.master_port or DEFAULT_PORT}"
    if cluster.num_nodes == 1:
        return ("deepspeed", f"--num_gpus={cluster.nproc}", port, *script)
    if hostfile is None:
        lines = "".join(f"node{node} slots={cluster.nproc}\\n" for node in range(cluster.num_nodes))
        raise ConfigError(
            codes.LAUNCH_HOSTFILE("deepspeed --hostfile", f"{cluster.num_nodes} nodes", lines=lines)
        )
    return (
        "deepspeed",
        f"--hostfile={hostfile}",
        f"--num_nodes={cluster.num_nodes}",
        f"--num_gpus={cluster.nproc}",
        f"--master_addr={cluster.master_addr}",
        port,
        *(() if ssh else ("--no_ssh", f"--node_rank={cluster.node_rank}")),
        *script,
    )
