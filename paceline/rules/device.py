"""Rules for this machine: what its devices do not support (there is no fallback to the CPU), and its
limits."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.config import codes as config_codes
from paceline.core.diagnostics import Diagnostic
from paceline.plan.hardware.device_kinds import CPU, CUDA, KINDS, DeviceKind, is_accelerator
from paceline.rules import codes
from paceline.rules.rule import Context, Rule

_OR_CPU = "use_cpu: true"


def _kind(c: Context) -> DeviceKind | None:
    """The accelerator of this run; None on a CPU and where it is unknown."""
    kind = KINDS.get(c.facts.device or "")
    return kind if kind is not None and is_accelerator(kind.name) else None


def device_float64(c: Context) -> Iterator[Diagnostic]:
    """device.float64"""
    kind = _kind(c)
    if kind is None or c.config.model.dtype != "float64":
        return
    several = (c.facts.world_size or 1) > 1
    if kind.float64 and (kind.wire_float64 or not several):
        return
    yield c.at(
        codes.DEVICE_FLOAT64(
            label=kind.label,
            why=f"{kind.backend} does not transfer it" if kind.float64 else "the device has no such tensors",
            or_cpu=_OR_CPU,
        ),
        "model.dtype",
    )


def device_alone(c: Context) -> Iterator[Diagnostic]:
    """device.alone"""
    kind = _kind(c)
    if kind is None or kind.backend:
        return
    world, group = c.facts.world_size or 1, c.strategy is not None and c.strategy.needs_group
    if world == 1 and not group:
        return
    yield c.problem(
        codes.DEVICE_ALONE,
        (
            f"{world} processes are to train on {kind.label}, but no backend transfers its tensors"
            if world > 1
            else f"{c.training.distributed_strategy} needs a process group, and no backend transfers"
            f" {kind.label} tensors"
        ),
        "training.distributed_strategy",
        hint=f"set distributed_strategy: single and start one process, or set {_OR_CPU}",
    )


def device_gloo(c: Context) -> Iterator[Diagnostic]:
    """device.gloo"""
    kind = _kind(c)
    if kind in (None, CUDA) or c.training.ddp_backend != CPU.backend or (c.facts.world_size or 1) == 1:
        return
    assert kind is not None
    if kind.backend:
        yield c.at(codes.DEVICE_GLOO(label=kind.label, backend=kind.backend), "training.ddp_backend")


def device_quantised(c: Context) -> Iterator[Diagnostic]:
    """device.quantised"""
    kind = _kind(c)
    if (
        kind is not None
        and not kind.bitsandbytes
        and c.config.lora is not None
        and c.config.lora.quantization_bit
    ):
        yield c.at(codes.DEVICE_QUANTISED(label=kind.label, or_cpu=_OR_CPU), "lora.quantization_bit")


def device_determinism(c: Context) -> Iterator[Diagnostic]:
    """device.determinism"""
    kind = _kind(c)
    if kind not in (None, CUDA) and c.training.full_determinism:
        assert kind is not None
        yield c.at(codes.DEVICE_DETERMINISM(label=kind.label, or_cpu=_OR_CPU), "training.full_determinism")


def foreign_files(c: Context) -> Iterator[Diagnostic]:
    """config.foreign_missing"""
    if not c.starting:
        return
    for path, value in (
        ("training.deepspeed", c.training.deepspeed),
        ("training.fsdp_config", c.training.fsdp_config),
    ):
        if isinstance(value, str):
            yield c.problem(
                config_codes.CONFIG_FOREIGN_MISSING,
                "the file does not exist",
                path,
                hint="give a path relative to the YAML or to the current directory",
            )


def locked_memory(c: Context) -> Iterator[Diagnostic]:
    """host.memlock"""
    if (
        c.facts.device == CUDA.name
        and (c.facts.num_nodes or 1) > 1
        and c.facts.infiniband
        and c.facts.memlock_unlimited is False
    ):
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


DEVICE_RULES: tuple[Rule, ...] = (
    device_float64,
    device_alone,
    device_gloo,
    device_quantised,
    device_determinism,
    foreign_files,
    locked_memory,
    open_files,
    interface,
)
