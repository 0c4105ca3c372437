"""The host: shared memory, limits, interfaces, versions; and files a start needs."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.config.rules.base import Context, Rule
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.units import human_bytes


def foreign_files(c: Context) -> Iterator[Diagnostic]:
    """config.foreign_missing"""
    t = c.config.training
    if not c.starting:
        return
    for path, value in (("training.deepspeed", t.deepspeed), ("training.fsdp_config", t.fsdp_config)):
        if isinstance(value, str):
            yield c.problem(
                "config.foreign_missing",
                "the file is not there",
                path,
                hint="a path beside the YAML or from the current directory",
            )


def shared_memory(c: Context) -> Iterator[Diagnostic]:
    """host.shm"""
    t, f = c.config.training, c.facts
    if f.shm_free_bytes is None or f.batch_bytes is None or t.dataloader_num_workers == 0:
        return
    need = t.dataloader_num_workers * (t.dataloader_prefetch_factor or 2) * f.batch_bytes * 2
    if f.shm_free_bytes < need:
        yield c.problem(
            "host.shm", f"loading processes need {human_bytes(need)} of shared memory, /dev/shm has {human_bytes(f.shm_free_bytes)} free",
            "training.dataloader_num_workers", hint="dataloader_num_workers: 0, or a container with a larger --shm-size",
        )  # fmt: skip


def limits(c: Context) -> Iterator[Diagnostic]:
    """host.memlock, host.nofile"""
    f = c.facts
    if f.infiniband and f.memlock_unlimited is False:
        yield Diagnostic(
            "host.memlock",
            "InfiniBand needs unlimited locked memory",
            where="ulimit -l",
            found="a limit",
            hint="ulimit -l unlimited",
        )
    workers = c.config.training.dataloader_num_workers * (f.num_devices or f.world_size or 1)
    if f.max_open_files is not None and f.max_open_files < 65536 and workers > 32:
        yield Diagnostic(
            "host.nofile",
            f"{workers} loading processes can run out of open files",
            where="ulimit -n",
            found=str(f.max_open_files),
            hint="ulimit -n 65536",
            severity=Severity.WARNING,
        )


def interface(c: Context) -> Iterator[Diagnostic]:
    """host.ifname"""
    wanted, there = c.facts.nccl_socket_ifname, c.facts.interfaces
    if not wanted or there is None or wanted.startswith("^"):
        return
    exact = wanted.startswith("=")
    names = [name for name in wanted.lstrip("=").split(",") if name]
    if not any(have == name if exact else have.startswith(name) for name in names for have in there):
        yield Diagnostic(
            "host.ifname",
            "NCCL_SOCKET_IFNAME names no interface of this node",
            where="NCCL_SOCKET_IFNAME",
            found=wanted,
            hint=f"one of {', '.join(sorted(there))}",
        )


def versions(c: Context) -> Iterator[Diagnostic]:
    """host.versions"""
    digests = c.facts.environment_digests
    if digests is not None and len(digests) > 1:
        yield Diagnostic(
            "host.versions",
            "the nodes run different versions of torch, NCCL, driver or packages",
            where="nodes",
            found=f"{len(digests)} different environments",
            hint="the same image on every node",
        )


HOST_RULES: tuple[Rule, ...] = (foreign_files, shared_memory, limits, interface, versions)
