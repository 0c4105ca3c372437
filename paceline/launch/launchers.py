"""The launchers by name: pure functions from a worker's command and the cluster to this node's processes.

``single`` and ``spawn`` start the workers directly, with torch's ``env://`` rendezvous; the others start one
command of another program, which starts this node's workers. For several nodes the user runs that command.
"""

from __future__ import annotations

import difflib
import shlex
import shutil
from collections.abc import Mapping, Sequence
from importlib import util
from typing import Protocol

from paceline.core.errors import ConfigError
from paceline.launch import codes
from paceline.launch.network import DEFAULT_PORT, gloo_interface
from paceline.launch.process_spec import (
    Cluster,
    LaunchSpec,
    import_path,
    module_and_args,
    rank_environment,
    thread_count,
)

#: torchrun's own code and flags, but it returns the worker's exit code and prints no error box
AGENT_MODULE = "paceline.runtime.torchrun_agent"
_OPTION = "--launcher"


class Specs(Protocol):
    """A launcher: a pure function from a worker's command and the cluster to the processes of this node."""

    def __call__(
        self, worker: Sequence[str], cluster: Cluster, *, environ: Mapping[str, str], cores: int
    ) -> tuple[LaunchSpec, ...]: ...


def single_specs(
    worker: Sequence[str], cluster: Cluster, *, environ: Mapping[str, str], cores: int
) -> tuple[LaunchSpec, ...]:
    """Return one worker. Its rank variables are set too, to override leftovers of another launcher."""
    return (LaunchSpec(tuple(worker), {**import_path(environ), **rank_environment(cluster, 0)}),)


def spawn_specs(
    worker: Sequence[str], cluster: Cluster, *, environ: Mapping[str, str], cores: int
) -> tuple[LaunchSpec, ...]:
    """Return one spec per worker of node ``cluster.node_rank``."""
    shared = {**_environment(environ, cores, cluster), **gloo_interface(cluster, environ)}
    return tuple(
        LaunchSpec(
            tuple(worker),
            {**shared, **rank_environment(cluster, local_rank)},
            cluster.node_rank,
            cluster.node_rank * cluster.nproc + local_rank,
        )
        for local_rank in range(cluster.nproc)
    )


def torchrun_specs(
    worker: Sequence[str], cluster: Cluster, *, environ: Mapping[str, str], cores: int
) -> tuple[LaunchSpec, ...]:
    """Return torchrun's elastic agent of this node: static rendezvous, no restarts."""
    flags = (
        f"--nnodes={cluster.num_nodes}",
        f"--nproc-per-node={cluster.nproc}",
        f"--node-rank={cluster.node_rank}",
        # with c10d the store is shared across attempts, and gloo connects to dead ports
        "--rdzv-backend=static",
        f"--master-addr={cluster.master_addr}",
        f"--master-port={cluster.master_port}",
        # Restarts are the launcher's own (``launch.max_restarts``), which looks at the checkpoints.
        "--max-restarts=0",
    )
    # Inherited by the workers, which the agent starts.
    env = {**_environment(environ, cores, cluster), **gloo_interface(cluster, environ)}
    return _agent((worker[0], "-m", AGENT_MODULE, *flags, *module_and_args(worker)), env, cluster)


def mpirun_specs(
    worker: Sequence[str], cluster: Cluster, *, environ: Mapping[str, str], cores: int
) -> tuple[LaunchSpec, ...]:
    """Build ``mpirun`` (Open MPI or MPICH), whose variables tell each worker its rank.

    Raises ConfigError if it is not installed, or for several nodes.
    """
    instead = "mpirun -np PROCESSES -H HOST,HOST python main.py --config CONFIG, once"
    _refuse_several_nodes("mpirun", cluster, instead)
    program = shutil.which("mpirun", path=environ.get("PATH"))
    if program is None:
        source = "install the system package openmpi-bin or mpich"
        raise ConfigError(
            codes.LAUNCH_NOT_INSTALLED(_OPTION, "mpirun", name="mpirun", source=source, own=_OPTION)
        )
    rendezvous = {
        "MASTER_ADDR": cluster.master_addr,
        "MASTER_PORT": str(cluster.master_port or DEFAULT_PORT),
    }
    # without --bind-to none all threads of a process are pinned to one core
    argv = (program, "-np", str(cluster.nproc), "--bind-to", "none", *worker)
    return _agent(argv, {**rendezvous, **_environment(environ, cores, cluster)}, cluster)


def accelerate_specs(
    worker: Sequence[str], cluster: Cluster, *, environ: Mapping[str, str], cores: int
) -> tuple[LaunchSpec, ...]:
    """Build ``accelerate launch``. Raises ConfigError without the package, or for several nodes."""
    _refuse_several_nodes("accelerate", cluster, "accelerate launch … main.py --config CONFIG on every node")
    _, launch, *arguments = accelerate_argv(module_and_args(worker), cluster, use_cpu=cluster.on_cpu)
    command = _python_module(worker, "accelerate", "accelerate.commands.accelerate_cli", (launch, *arguments))
    return _agent(command, _environment(environ, cores, cluster), cluster)


def accelerate_argv(script: Sequence[str], cluster: Cluster, *, use_cpu: bool) -> tuple[str, ...]:
    """Return the ``accelerate launch …`` command (it runs torchrun's agent internally).

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


def deepspeed_specs(
    worker: Sequence[str], cluster: Cluster, *, environ: Mapping[str, str], cores: int
) -> tuple[LaunchSpec, ...]:
    """Build ``deepspeed``. Raises ConfigError without the package, or for several nodes."""
    _refuse_several_nodes("deepspeed", cluster, "deepspeed --hostfile=… main.py --config CONFIG, once")
    _, module, *rest = module_and_args(worker)
    _, *arguments = deepspeed_argv(("--module", module, *rest), cluster)
    command = _python_module(worker, "deepspeed", "deepspeed.launcher.runner", arguments)
    device = {"DS_ACCELERATOR": "cpu"} if cluster.on_cpu else {}
    return _agent(command, {**device, **_environment(environ, cores, cluster)}, cluster)


def deepspeed_argv(
    script: Sequence[str], cluster: Cluster, *, hostfile: str | None = None, ssh: bool = False
) -> tuple[str, ...]:
    """Return ``deepspeed … script``; ``script`` is a file and its arguments, or ``--module name …``.

    Several nodes need a hostfile, even if each is started by hand (``--no_ssh --node_rank``); with ``ssh``
    node 0 starts the others with pdsh. Raises ConfigError for several nodes without a hostfile.
    """
    # always given: without it DeepSpeed starts one process per NUMA node on a CPU
    processes = f"--num_gpus={cluster.nproc}"
    port = f"--master_port={cluster.master_port or DEFAULT_PORT}"
    if cluster.num_nodes == 1:
        return ("deepspeed", processes, port, *script)
    if hostfile is None:
        lines = "".join(f"node{node} slots={cluster.nproc}\\n" for node in range(cluster.num_nodes))
        raise ConfigError(
            codes.LAUNCH_HOSTFILE("deepspeed --hostfile", f"{cluster.num_nodes} nodes", lines=lines)
        )
    return (
        "deepspeed",
        f"--hostfile={hostfile}",
        f"--num_nodes={cluster.num_nodes}",
        processes,
        f"--master_addr={cluster.master_addr}",
        port,
        *(() if ssh else ("--no_ssh", f"--node_rank={cluster.node_rank}")),
        *script,
    )


def _environment(environ: Mapping[str, str], cores: int, cluster: Cluster) -> dict[str, str]:
    """Return the import path and the number of threads of a worker."""
    return {**import_path(environ), **thread_count(environ, cores, cluster.nproc)}


def _agent(argv: Sequence[str], env: Mapping[str, str], cluster: Cluster) -> tuple[LaunchSpec, ...]:
    """Return one process of another program, which starts this node's workers."""
    return (LaunchSpec(tuple(argv), env, cluster.node_rank, rank=None, ranks=cluster.nproc),)


def _python_module(
    worker: Sequence[str], package: str, module: str, arguments: Sequence[str]
) -> tuple[str, ...]:
    """Return a launcher's command, run by the workers' interpreter: its script may not be on PATH."""
    if util.find_spec(package) is None:
        source = f"pip install 'paceline[{package}]'"
        raise ConfigError(
            codes.LAUNCH_NOT_INSTALLED(_OPTION, package, name=package, source=source, own=_OPTION)
        )
    return (worker[0], "-m", module, *arguments)


def _refuse_several_nodes(name: str, cluster: Cluster, instead: str) -> None:
    """Raise ConfigError for several nodes: there the user runs the launcher's own command, ``instead``."""
    if cluster.num_nodes > 1:
        request = f"{_OPTION} {shlex.quote(name)} with {cluster.num_nodes} nodes"
        raise ConfigError(codes.LAUNCH_ONE_NODE(_OPTION, request, name=name, instead=instead, own=_OPTION))


#: Run the worker without a launcher, for a single process.
ALONE = "single"
LAUNCHERS: Mapping[str, Specs] = {
    ALONE: single_specs,
    "spawn": spawn_specs,
    "torchrun": torchrun_specs,
    "mpirun": mpirun_specs,
    "accelerate": accelerate_specs,
    "deepspeed": deepspeed_specs,
}
OFFERED = tuple(name for name in LAUNCHERS if name != ALONE)


def launcher_for(cluster: Cluster, requested: str | None = None) -> str:
    """Return the launcher: ``requested`` if given, else ``single`` for one process and ``spawn`` for more.

    Raises ConfigError for an unknown launcher.
    """
    if requested is None:
        return ALONE if cluster.world_size == 1 else "spawn"
    if requested not in OFFERED:
        near = difflib.get_close_matches(requested, OFFERED, n=1)
        nearest = f"did you mean '{near[0]}'?" if near else f"one of: {', '.join(OFFERED)}"
        raise ConfigError(codes.LAUNCH_UNKNOWN(_OPTION, requested, requested=requested, hint=nearest))
    return requested
