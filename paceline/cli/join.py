"""``paceline train`` inside srun, mpirun or torchrun: one command in N processes is one job of N ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from paceline.cli import codes, process
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError, ExitCode
from paceline.launch.environment.job_managers import (
    manager_of,
    parse_nonnegative_int,
    process_rank,
    started_by,
    torchrun_node,
)
from paceline.launch.network import DEFAULT_PORT
from paceline.launch.process_spec import LaunchOptions

LATER_SECONDS = 2.0  # rank 0 prints before a launcher kills all ranks
_ONE_TASK_A_NODE = {
    "Slurm": "srun --ntasks-per-node=1",
    "Open MPI": "mpirun --npernode 1",
    "Flux": "flux run -N NODES",
}


def as_torchrun_node(options: LaunchOptions) -> LaunchOptions:
    """Return ``options`` with the node that torchrun's variables name, where the command line is silent."""
    node = torchrun_node(os.environ)
    if node is None or options.nnodes is not None:
        return options
    several = node.num_nodes > 1
    return replace(
        options,
        nproc=options.nproc or node.nproc,
        nnodes=node.num_nodes,
        node_rank=node.node_rank if options.node_rank is None else options.node_rank,
        master_addr=options.master_addr or (node.master_addr if several else None),
        master_port=options.master_port or ((node.master_port or DEFAULT_PORT) if several else None),
    )


def rehearsed(options: LaunchOptions) -> LaunchOptions:
    """Return ``options`` with the processes that the surrounding launcher has started.

    Used by commands that start nothing (``plan``, ``--dry-run``). Exits all ranks but 0, which alone prints.
    Raises ConfigError if the options request another number of processes.
    """
    here = process_rank(os.environ)
    if here.size == 1 or drives_a_node(options):
        return on_its_node(options)
    refuse_own_processes(options, here.size)
    if here.rank != 0:
        raise SystemExit(int(ExitCode.OK))
    nodes = max(1, here.size // here.local_size)
    # A rank may derive another port from the job's id
    port = parse_nonnegative_int(os.environ.get("MASTER_PORT", "")) or DEFAULT_PORT
    address, port_of_nodes = (here.host or None, port) if nodes > 1 else (None, None)
    return replace(
        options, nproc=here.local_size, nnodes=nodes, master_addr=address, master_port=port_of_nodes
    )


def join(
    config: Path, overrides: Sequence[str], options: LaunchOptions, local_rank: int | None = None
) -> None:
    """Become one rank of the job when a launcher has started several processes; otherwise return.

    Raises ConfigError if the command would start further processes in each of them.
    """
    size = process_rank(os.environ).size
    if size == 1 or drives_a_node(options):
        return
    refuse_own_processes(options, size)
    # A rank reads the launch options from its environment
    become_rank(
        config, overrides, LaunchOptions(algorithm=options.algorithm, resume=options.resume), local_rank
    )


def become_rank(
    config: Path, overrides: Sequence[str], options: LaunchOptions, local_rank: int | None
) -> NoReturn:
    """Replace this process by a rank that reads the YAML itself."""
    from paceline.launch.process_spec import WORKER_MODULE
    from paceline.launch.start_run import outside_arguments

    arguments = outside_arguments(config, overrides, options)
    process.become(WORKER_MODULE, *arguments, *process.words(local_rank=local_rank))


def on_its_node(options: LaunchOptions) -> LaunchOptions:
    """Return ``options`` with ``node_rank`` when a launcher has started this command once per node.

    Unchanged when ``node_rank`` is given already.
    """
    if options.node_rank is not None or not drives_a_node(options):
        return options
    here = process_rank(os.environ)
    return replace(options, node_rank=here.rank, master_addr=options.master_addr or here.host or None)


def refuse_many_processes(command: str) -> None:
    """Raise ConfigError when a launcher has started several processes, each of which would do ``what``."""
    size = process_rank(os.environ).size
    if size > 1:
        launcher = started_by(os.environ)
        says = f"{launcher} has started this command {size} times, but each would start its own processes"
        remedy = f"run {command} by itself, or in one task ({_one_task(launcher)})"
        raise _print_once(codes.LAUNCH_MANY_TIMES(says, command, f"{size} processes", remedy))


def drives_a_node(options: LaunchOptions) -> bool:
    """Whether this command runs once on each of ``nnodes`` nodes and launches that node's ranks itself."""
    if torchrun_node(os.environ) is not None:
        return True
    here = process_rank(os.environ)
    # Two launchers on one machine are meant where the processes of each are given, too
    alone = here.local_size == 1 or options.nproc is not None
    return (options.nnodes or 1) > 1 and options.nnodes == here.size and alone


def refuse_own_processes(options: LaunchOptions, size: int) -> None:
    """Raise ConfigError when the options ask for processes, but a launcher has started ``size`` already."""
    values = {
        "--nproc": options.nproc,
        "--nnodes": options.nnodes,
        "--node-rank": options.node_rank,
        "--launcher": options.launcher,
    }
    requested = {name: f"{name} {value}" for name, value in values.items() if value is not None}
    if not requested:
        return
    launcher = started_by(os.environ)
    says = (
        f"{launcher} has started this command {size} times; each is one rank of {size}, and starts"
        " no processes itself"
    )
    one_a_node = f"{_one_task(launcher)} and --nnodes"
    remedy = f"leave out {' and '.join(requested)}; or use one launcher per node: {one_a_node}"
    raise _print_once(
        codes.LAUNCH_MANY_TIMES(says, next(iter(requested)), ", ".join(requested.values()), remedy)
    )


def _print_once(finding: Diagnostic) -> BaseException:
    """Return ``finding`` as an error on rank 0, and a silent exit with the same code on other ranks.

    The others wait a little before they exit, since a launcher kills all processes once one has exited.
    """
    if process_rank(os.environ).rank == 0:
        return ConfigError(finding)
    time.sleep(LATER_SECONDS)
    return SystemExit(int(ExitCode.CONFIG))


def _one_task(launcher: str | None) -> str:
    manager = manager_of(os.environ)
    return _ONE_TASK_A_NODE.get(manager.name if manager else "", f"{launcher} with one process per node")
