"""Start third-party launchers on one node: Open MPI or MPICH, Accelerate, DeepSpeed.

For several nodes the user runs the launcher's own command.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from importlib import util

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.launch import accelerate, codes, deepspeed
from paceline.launch.ports import DEFAULT_PORT
from paceline.launch.spec import Cluster, LaunchSpec, import_path, module_and_args, thread_count

_OWN = "--launcher"


def mpirun_specs(
    worker: Sequence[str], cluster: Cluster, *, environ: Mapping[str, str], cores: int
) -> tuple[LaunchSpec, ...]:
    """Build ``mpirun`` (Open MPI or MPICH).

    Raises ConfigError if it is not installed, or for several nodes.
    """
    _one_node("mpirun", cluster, "mpirun -np PROCESSES -H HOST,HOST python main.py --config CONFIG, once")
    found = shutil.which("mpirun", path=environ.get("PATH"))
    if found is None:
        raise ConfigError(_missing("mpirun", "install the system package openmpi-bin or mpich"))
    meeting = {"MASTER_ADDR": cluster.master_addr, "MASTER_PORT": str(cluster.master_port or DEFAULT_PORT)}
    # threads of a process are not pinned
    argv = (found, "-np", str(cluster.nproc), "--bind-to", "none", *worker)
    return _agent(argv, {**meeting, **_shared(environ, cores, cluster)}, cluster)


def accelerate_specs(
    worker: Sequence[str], cluster: Cluster, *, environ: Mapping[str, str], cores: int
) -> tuple[LaunchSpec, ...]:
    """Build ``accelerate launch``. Raises ConfigError without the package, or for several nodes."""
    _one_node("accelerate", cluster, "accelerate launch … main.py --config CONFIG on every node")
    _, launch, *arguments = accelerate.argv(module_and_args(worker), cluster, use_cpu=cluster.on_cpu)
    argv = _module(worker, "accelerate", "accelerate.commands.accelerate_cli", (launch, *arguments))
    return _agent(argv, _shared(environ, cores, cluster), cluster)


def deepspeed_specs(
    worker: Sequence[str], cluster: Cluster, *, environ: Mapping[str, str], cores: int
) -> tuple[LaunchSpec, ...]:
    """Build ``deepspeed``. Raises ConfigError without the package, or for several nodes."""
    _one_node("deepspeed", cluster, "deepspeed --hostfile=… main.py --config CONFIG, once")
    _, module, *rest = module_and_args(worker)
    _, *arguments = deepspeed.argv(("--module", module, *rest), cluster)
    argv = _module(worker, "deepspeed", "deepspeed.launcher.runner", arguments)
    device = {"DS_ACCELERATOR": "cpu"} if cluster.on_cpu else {}
    return _agent(argv, {**device, **_shared(environ, cores, cluster)}, cluster)


def _shared(environ: Mapping[str, str], cores: int, cluster: Cluster) -> dict[str, str]:
    return {**import_path(environ), **thread_count(environ, cores, cluster.nproc)}


def _agent(argv: Sequence[str], env: Mapping[str, str], cluster: Cluster) -> tuple[LaunchSpec, ...]:
    return (LaunchSpec(tuple(argv), env, cluster.node_rank, rank=None, ranks=cluster.nproc),)


def _module(worker: Sequence[str], package: str, module: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the launcher's command, run by the workers' interpreter: its script may not be on PATH."""
    if util.find_spec(package) is None:
        raise ConfigError(_missing(package, f"pip install 'paceline[{package}]'"))
    return (worker[0], "-m", module, *arguments)


def _one_node(name: str, cluster: Cluster, instead: str) -> None:
    if cluster.num_nodes > 1:
        found = f"{_OWN} {shlex.quote(name)} with {cluster.num_nodes} nodes"
        raise ConfigError(codes.LAUNCH_ONE_NODE(_OWN, found, name=name, instead=instead, own=_OWN))


def _missing(name: str, source: str) -> Diagnostic:
    return codes.LAUNCH_NOT_INSTALLED(_OWN, name, name=name, source=source, own=_OWN)
