"""The ``accelerate launch`` command for a job (Accelerate runs torchrun's agent internally)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.launch.launchers.agent import agent_environment, agent_spec, python_module, refuse_several_nodes
from paceline.launch.ports import DEFAULT_PORT
from paceline.launch.process_spec import Cluster, LaunchSpec, module_and_args


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


def specs(
    worker: Sequence[str], cluster: Cluster, *, environ: Mapping[str, str], cores: int
) -> tuple[LaunchSpec, ...]:
    """Build ``accelerate launch``. Raises ConfigError without the package, or for several nodes."""
    refuse_several_nodes("accelerate", cluster, "accelerate launch … main.py --config CONFIG on every node")
    _, launch, *arguments = argv(module_and_args(worker), cluster, use_cpu=cluster.on_cpu)
    command = python_module(worker, "accelerate", "accelerate.commands.accelerate_cli", (launch, *arguments))
    return agent_spec(command, agent_environment(environ, cores, cluster), cluster)
