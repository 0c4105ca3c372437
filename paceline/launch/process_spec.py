"""What to start: the cluster in numbers, and one command per process."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.core.json_types import JsonObject
from paceline.core.package import ROOT

if TYPE_CHECKING:
    from paceline.config.sections.launch import LaunchSection

WORKER_MODULE = "paceline.training.rank"


@dataclass(frozen=True)
class Cluster:
    """``nproc`` processes on each of ``num_nodes`` nodes; node 0 is at ``master_addr:master_port``.

    ``node_rank``: this node; ``on_cpu``: for third-party launchers, which would look for GPUs.
    """

    nproc: int = 1
    num_nodes: int = 1
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int | None = None
    on_cpu: bool = False

    @staticmethod
    def of(section: LaunchSection) -> Cluster:
        """Return the cluster of a config; one process per node by default."""
        return Cluster(
            section.nproc or 1, section.nnodes, section.node_rank, section.master_addr, section.master_port
        )

    @property
    def world_size(self) -> int:
        """The number of processes on all nodes."""
        return self.nproc * self.num_nodes


@dataclass(frozen=True)
class LaunchSpec:
    """One process to start on this node: ``argv`` and additions to the environment.

    ``rank``: the global rank of a worker; None for an agent, which itself starts the ``ranks`` workers of its
    node.
    """

    argv: tuple[str, ...]
    env_additions: Mapping[str, str] = field(default_factory=dict)
    node_rank: int = 0
    rank: int | None = 0
    ranks: int = 1

    def shell_line(self) -> str:
        """Return the command as a line for a POSIX shell (``--dry-run``)."""
        variables = [f"{key}={shlex.quote(value)}" for key, value in self.env_additions.items()]
        return " ".join([*variables, shlex.join(self.argv)])


def worker_argv(*args: str, python: str | None = None) -> tuple[str, ...]:
    """Return ``python -m paceline.training.rank …`` with the current interpreter."""
    return (python or sys.executable, "-m", WORKER_MODULE, *args)


ENTERED = "paceline.launch.run_module"  # handles signals while the module behind it is imported


def module_argv(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this package with the current interpreter."""
    return [sys.executable, "-m", module, *arguments]


def import_path(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the ``PYTHONPATH`` with which a child imports this very package.

    Empty if it is in site-packages.
    """
    paths = environ.get("PYTHONPATH", "")
    if ROOT.name in ("site-packages", "dist-packages") or str(ROOT) in paths.split(":"):
        return {}
    return {"PYTHONPATH": f"{ROOT}:{paths}" if paths else str(ROOT)}


def thread_count(environ: Mapping[str, str], cores: int, nproc: int) -> dict[str, str]:
    """Return ``OMP_NUM_THREADS`` = cores per process, for several processes and if it is not set yet."""
    if nproc <= 1 or environ.get("OMP_NUM_THREADS"):
        return {}
    return {"OMP_NUM_THREADS": str(max(1, cores // nproc))}


def malloc_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return glibc's malloc setting for workers that train on a CPU: no per-thread cache of small blocks.

    The remainder of an aligned allocation then merges with the block when it is freed, so that a block of the
    same size fits again. With the cache, activations leave holes (5 % of a run's peak memory, measured).
    """
    tunables = environ.get("GLIBC_TUNABLES", "")
    if "glibc.malloc.tcache_count" in tunables:
        return {}
    return {"GLIBC_TUNABLES": ":".join(part for part in (tunables, "glibc.malloc.tcache_count=0") if part)}


def rank_environment(cluster: Cluster, local_rank: int) -> dict[str, str]:
    """Return the variables of torch's ``env://`` rendezvous, as torchrun sets them."""
    env = {
        "RANK": str(cluster.node_rank * cluster.nproc + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(cluster.world_size),
        "LOCAL_WORLD_SIZE": str(cluster.nproc),
        "GROUP_RANK": str(cluster.node_rank),
        "GROUP_WORLD_SIZE": str(cluster.num_nodes),
    }
    if cluster.world_size > 1:
        env |= {"MASTER_ADDR": cluster.master_addr, "MASTER_PORT": str(cluster.master_port)}
    return env


def module_and_args(argv: Sequence[str]) -> tuple[str, ...]:
    """Return ``argv`` without its interpreter, for launchers that bring their own.

    The result is ``-m module …`` or ``script …``.
    """
    return tuple(argv[1:])


@dataclass(frozen=True)
class LaunchOptions:
    """The command line's launch options; None where an option is not given."""

    nproc: int | None = None
    nnodes: int | None = None
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    algorithm: str | None = None
    resume: str | None = None
    launcher: str | None = None

    def flags(self) -> JsonObject:
        """Return the given options as config keys: the command-line layer of the config."""
        settings = {
            "launch.nproc": self.nproc,
            "launch.nnodes": self.nnodes,
            "launch.node_rank": self.node_rank,
            "launch.master_addr": self.master_addr,
            "launch.master_port": self.master_port,
            "training.algorithm": self.algorithm,
            "training.resume_from_checkpoint": self.resume,
        }
        return {key: value for key, value in settings.items() if value is not None}
