"""What the launchers of other programs have in common: one command starts this node's workers.

For several nodes the user runs the launcher's own command.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from importlib import util

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.launch import codes
from paceline.launch.process_spec import Cluster, LaunchSpec, import_path, thread_count

_OWN = "--launcher"


def agent_environment(environ: Mapping[str, str], cores: int, cluster: Cluster) -> dict[str, str]:
    """Variables of every third-party launcher: the import path and the threads of a worker."""
    return {**import_path(environ), **thread_count(environ, cores, cluster.nproc)}


def agent_spec(argv: Sequence[str], env: Mapping[str, str], cluster: Cluster) -> tuple[LaunchSpec, ...]:
    """One process of the launcher, which starts this node's workers."""
    return (LaunchSpec(tuple(argv), env, cluster.node_rank, rank=None, ranks=cluster.nproc),)


def python_module(
    worker: Sequence[str], package: str, module: str, arguments: Sequence[str]
) -> tuple[str, ...]:
    """Return the launcher's command, run by the workers' interpreter: its script may not be on PATH."""
    if util.find_spec(package) is None:
        raise ConfigError(not_installed(package, f"pip install 'paceline[{package}]'"))
    return (worker[0], "-m", module, *arguments)


def refuse_several_nodes(name: str, cluster: Cluster, instead: str) -> None:
    """Raise ConfigError for several nodes: there the user runs the launcher's own command, ``instead``."""
    if cluster.num_nodes > 1:
        found = f"{_OWN} {shlex.quote(name)} with {cluster.num_nodes} nodes"
        raise ConfigError(codes.LAUNCH_ONE_NODE(_OWN, found, name=name, instead=instead, own=_OWN))


def not_installed(name: str, source: str) -> Diagnostic:
    """What a missing launcher is told as."""
    return codes.LAUNCH_NOT_INSTALLED(_OWN, name, name=name, source=source, own=_OWN)
