"""``paceline train`` and its kin inside srun, mpirun, torchrun …: one command in N processes is one job of N ranks, not N jobs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli import codes
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError, ExitCode
from paceline.launch.managers import manager_of, standing, started_by, whole
from paceline.launch.ports import DEFAULT_PORT

if TYPE_CHECKING:
    from paceline.cli.asked import Asked

_LATER_SECONDS = 2.0


def rehearsed(asked: Asked) -> Asked:
    """For what starts nothing (``plan``, ``--dry-run``): the processes that the launcher around has started as if the command asked for them.

    All but rank 0 have nothing to show. Raises ConfigError where the command asks for others.
    """
    here = standing(os.environ)
    if here.size == 1 or drives_a_node(asked):
        return on_its_node(asked)
    refuse_own_processes(asked, here.size)
    if here.rank != 0:
        raise SystemExit(int(ExitCode.OK))
    nodes = max(1, here.size // here.local_size)
    port = whole(os.environ.get("MASTER_PORT", "")) or DEFAULT_PORT  # a rank may derive another from the job
    address, port_of_nodes = (here.host or None, port) if nodes > 1 else (None, None)
    return replace(asked, nproc=here.local_size, nnodes=nodes, master_addr=address, master_port=port_of_nodes)


def join(config: Path, overrides: Sequence[str], asked: Asked, local_rank: int | None = None) -> None:
    """Become this process's rank when a launcher has started several; return when there is nothing to join.

    Raises ConfigError when it cannot be one of them: the command asks for processes of its own in each.
    """
    from paceline.cli.process import become
    from paceline.cli.start import outside_arguments
    from paceline.launch.spec import WORKER_MODULE

    size = standing(os.environ).size
    if size == 1 or drives_a_node(asked):
        return
    refuse_own_processes(asked, size)
    arguments = outside_arguments(config, overrides, _of_the_config(asked))
    become(WORKER_MODULE, *arguments, *(["--local-rank", str(local_rank)] if local_rank is not None else []))


def on_its_node(asked: Asked) -> Asked:
    """``asked`` with the node's number, where a launcher has started one of this command a node and the command does not say which it is."""
    if asked.node_rank is not None or not drives_a_node(asked):
        return asked
    here = standing(os.environ)
    return replace(asked, node_rank=here.rank, master_addr=asked.master_addr or here.host or None)


def alone(what: str) -> None:
    """Raises ConfigError where ``what`` would be done once in each of several processes of a launcher."""
    size = standing(os.environ).size
    if size > 1:
        launcher = started_by(os.environ)
        says = f"{launcher} has started this command {size} times, and each would start processes of its own"
        hint = f"{what} by itself, or in one task ({_one_task(launcher)})"
        raise _said_once(codes.LAUNCH_MANY_TIMES(says, what, f"{size} processes", hint))


def drives_a_node(asked: Asked) -> bool:
    """Whether the command is a launcher of its own, once a node: as many nodes are asked for as processes were started."""
    here = standing(os.environ)
    return (asked.nnodes or 1) > 1 and asked.nnodes == here.size and here.local_size == 1


def refuse_own_processes(asked: Asked, size: int) -> None:
    """Raises ConfigError when the command asks for processes or nodes, and a launcher has started ``size`` of it already."""
    given = {"--nproc": asked.nproc, "--nnodes": asked.nnodes, "--node-rank": asked.node_rank}
    named = [f"{name} {value}" for name, value in given.items() if value is not None]
    if asked.launcher is not None:
        named.append(f"--launcher {asked.launcher}")
    if not named:
        return
    launcher = started_by(os.environ)
    says = f"{launcher} has started this command {size} times; each is one rank of {size}, and starts no processes of its own"
    without = " and ".join(name.split()[0] for name in named)
    hint = f"without {without}; or one launcher a node: {_one_task(launcher)} and --nnodes"
    raise _said_once(codes.LAUNCH_MANY_TIMES(says, named[0].split()[0], ", ".join(named), hint))


def _said_once(finding: Diagnostic) -> BaseException:
    """What every process finds alike is told by rank 0; the others end with the same code, a little later: a launcher ends all when one has ended."""
    if standing(os.environ).rank == 0:
        return ConfigError(finding)
    time.sleep(_LATER_SECONDS)
    return SystemExit(int(ExitCode.CONFIG))


def _of_the_config(asked: Asked) -> Asked:
    """What a rank is told: where it stands it reads from the environment."""
    return replace(asked, nproc=None, nnodes=None, node_rank=None, master_addr=None, master_port=None)


def _one_task(launcher: str | None) -> str:
    manager = manager_of(os.environ)
    name = manager.name if manager else ""
    return {"Slurm": "srun --ntasks-per-node=1", "Open MPI": "mpirun --npernode 1", "Flux": "flux run -N NODES"}.get(
        name, f"{launcher} with one process a node"
    )
