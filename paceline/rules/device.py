"""Rules for what a kind of device cannot do: it is refused by name, and nothing goes to the CPU instead."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.core.diagnostics import Diagnostic
from paceline.plan.hardware.kinds import CPU, CUDA, KINDS, DeviceKind, is_accelerator
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
    why = f"{kind.backend} does not transfer it" if kind.float64 else "the device has no such tensors"
    yield c.at(codes.DEVICE_FLOAT64(label=kind.label, why=why, or_cpu=_OR_CPU), "model.dtype")


def device_alone(c: Context) -> Iterator[Diagnostic]:
    """device.alone"""
    kind = _kind(c)
    if kind is None or kind.backend:
        return
    world, group = c.facts.world_size or 1, c.strategy is not None and c.strategy.needs_group
    if world == 1 and not group:
        return
    what = (
        f"{world} processes are to train on {kind.label}, but no backend transfers its tensors"
        if world > 1
        else f"{c.config.training.distributed_strategy} needs a process group, and no backend transfers"
        f" {kind.label} tensors"
    )
    yield c.problem(
        codes.DEVICE_ALONE,
        what,
        "training.distributed_strategy",
        hint=f"set distributed_strategy: single and start one process, or set {_OR_CPU}",
    )


def device_gloo(c: Context) -> Iterator[Diagnostic]:
    """device.gloo"""
    kind = _kind(c)
    if kind in (None, CUDA) or c.config.training.ddp_backend != CPU.backend or (c.facts.world_size or 1) == 1:
        return
    assert kind is not None
    if kind.backend:
        yield c.at(codes.DEVICE_GLOO(label=kind.label, backend=kind.backend), "training.ddp_backend")


def device_quantised(c: Context) -> Iterator[Diagnostic]:
    """device.quantised"""
    kind, lora = _kind(c), c.config.lora
    if kind is not None and not kind.bitsandbytes and lora is not None and lora.quantization_bit:
        yield c.at(codes.DEVICE_QUANTISED(label=kind.label, or_cpu=_OR_CPU), "lora.quantization_bit")


def device_determinism(c: Context) -> Iterator[Diagnostic]:
    """device.determinism"""
    kind = _kind(c)
    if kind not in (None, CUDA) and c.config.training.full_determinism:
        assert kind is not None
        yield c.at(codes.DEVICE_DETERMINISM(label=kind.label, or_cpu=_OR_CPU), "training.full_determinism")


DEVICE_RULES: tuple[Rule, ...] = (
    device_float64,
    device_alone,
    device_gloo,
    device_quantised,
    device_determinism,
)
