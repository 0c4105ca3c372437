"""The ``deepspeed`` launcher's command line, and variables that DeepSpeed reads from the environment only."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from paceline.core.errors import ConfigError
from paceline.launch import codes
from paceline.launch.launchers.agent import agent_environment, agent_spec, python_module, refuse_several_nodes
from paceline.launch.ports import DEFAULT_PORT
from paceline.launch.process_spec import Cluster, LaunchSpec, module_and_args


def publish(values: Mapping[str, str]) -> None:
    """Set environment variables of this process if unset: DeepSpeed reads device and ranks only there."""
    for name, value in values.items():
        os.environ.setdefault(name, value)


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


def specs(
    worker: Sequence[str], cluster: Cluster, *, environ: Mapping[str, str], cores: int
) -> tuple[LaunchSpec, ...]:
    """Build ``deepspeed``. Raises ConfigError without the package, or for several nodes."""
    refuse_several_nodes("deepspeed", cluster, "deepspeed --hostfile=… main.py --config CONFIG, once")
    _, module, *rest = module_and_args(worker)
    _, *arguments = argv(("--module", module, *rest), cluster)
    command = python_module(worker, "deepspeed", "deepspeed.launcher.runner", arguments)
    device = {"DS_ACCELERATOR": "cpu"} if cluster.on_cpu else {}
    return agent_spec(command, {**device, **agent_environment(environ, cores, cluster)}, cluster)
