"""Rules for the host: resource limits, network interfaces, and files needed to start."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.config import codes as config_codes
from paceline.core.diagnostics import Diagnostic
from paceline.plan.hardware.kinds import CUDA
from paceline.rules import codes
from paceline.rules.rule import Context, Rule


def foreign_files(c: Context) -> Iterator[Diagnostic]:
    """config.foreign_missing"""
    t = c.config.training
    if not c.starting:
        return
    for path, value in (("training.deepspeed", t.deepspeed), ("training.fsdp_config", t.fsdp_config)):
        if isinstance(value, str):
            yield c.problem(
                config_codes.CONFIG_FOREIGN_MISSING,
                "the file does not exist",
                path,
                hint="give a path relative to the YAML or to the current directory",
            )


def locked_memory(c: Context) -> Iterator[Diagnostic]:
    """host.memlock"""
    f = c.facts
    if f.device == CUDA.name and (f.num_nodes or 1) > 1 and f.infiniband and f.memlock_unlimited is False:
        yield codes.HOST_MEMLOCK("ulimit -l", "a limit")


CONNECTIONS = 2  # per process to node 0's store: the process group's and the alarm's
OTHER_FILES = 64  # other files that node 0's processes have open


def open_files(c: Context) -> Iterator[Diagnostic]:
    """host.nofile"""
    limit, world = c.facts.max_open_files, c.facts.world_size
    need = CONNECTIONS * (world or 0) + OTHER_FILES
    if limit is not None and need > limit and c.config.launch.node_rank == 0:
        yield codes.HOST_NOFILE(
            "ulimit -n", str(limit), world=world, need=need, hint=f"ulimit -n {max(65536, 2 * need)}"
        )


def interface(c: Context) -> Iterator[Diagnostic]:
    """host.ifname"""
    wanted, there = c.facts.nccl_socket_ifname, c.facts.interfaces
    if not wanted or there is None or wanted.startswith("^"):
        return
    exact = wanted.startswith("=")
    names = [name for name in wanted.lstrip("=").split(",") if name]
    if not any(have == name if exact else have.startswith(name) for name in names for have in there):
        yield codes.HOST_IFNAME("NCCL_SOCKET_IFNAME", wanted, there=", ".join(sorted(there)))


HOST_RULES: tuple[Rule, ...] = (foreign_files, locked_memory, open_files, interface)
