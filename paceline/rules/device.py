"""Rules for this machine: its limits, and what its devices do not support, such as number formats.

There is no fallback to the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from paceline.config import codes as config_codes
from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import as_object
from paceline.plan.features.precision import rounds
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


_MIXED = "training.mixed_precision"
_BF16_HALF_STEP = 512  # a weight over half the distance to bfloat16's next number, at most
_USUAL_WEIGHT = 0.004  # a fifth of the spread that most models begin with


def _device(c: Context) -> str:
    return c.facts.device_name or (
        "this device" if not c.facts.device else "this GPU" if is_accelerator(c.facts.device) else "this CPU"
    )


def full_eval(c: Context) -> Iterator[Diagnostic]:
    """prec.fp16_bf16_eval"""
    if c.training.fp16_full_eval and c.training.bf16_full_eval:
        yield c.at(codes.PREC_FP16_BF16_EVAL(), "training.fp16_full_eval", "training.bf16_full_eval")


def can_scale_loss(c: Context) -> bool:
    """Whether fp16 gets its loss scaling: the strategy supports it, and FSDP's offload is off."""
    offload = (
        "offload" in str(c.training.fsdp) or as_object(c.training.fsdp_config).get("cpu_offload") is True
    )
    return (c.strategy is None or c.strategy.loss_scale) and not offload


def low_precision(c: Context) -> Iterator[Diagnostic]:
    """prec.bf16_hw, prec.fp16_hw"""
    scaled = can_scale_loss(c)
    for word, able, code in (
        ("bf16", c.facts.bf16, codes.PREC_BF16_HW),
        ("fp16", c.facts.fp16, codes.PREC_FP16_HW),
    ):
        full_eval_key = f"{word}_full_eval"
        if able is False and c.training.mixed_precision == word:
            other = " fp16 or" if word == "bf16" and c.facts.fp16 and scaled else ""
            yield c.at(code(device=_device(c), hint=f"set mixed_precision: auto,{other} no"), _MIXED)
        if able is False and getattr(c.training, full_eval_key):
            yield c.at(code(device=_device(c), hint=f"{full_eval_key}: false"), f"training.{full_eval_key}")


def bf16_pretrained(c: Context) -> Iterator[Diagnostic]:
    """prec.bf16_pretrained_fp16"""
    if c.training.mixed_precision == "fp16" and c.facts.pretrained_dtype == "bfloat16":
        word = "no" if c.facts.bf16 is False else "bf16"
        yield c.at(codes.PREC_BF16_PRETRAINED_FP16(hint=f"set mixed_precision: {word}"), _MIXED)


def deepspeed_fp16(c: Context) -> Iterator[Diagnostic]:
    """prec.min_loss_scale, prec.amp_zero"""
    fp16, amp = as_object(c.deepspeed.get("fp16")), as_object(c.deepspeed.get("amp"))
    smallest = fp16.get("min_loss_scale", 1)
    if (
        fp16.get("enabled") is True
        and fp16.get("loss_scale", 0) == 0
        and isinstance(smallest, (int, float))
        and smallest <= 0
    ):
        yield c.at(codes.PREC_MIN_LOSS_SCALE(found=f"fp16.min_loss_scale: {smallest}"), "training.deepspeed")
    stage = c.zero.get("stage", 0)
    if amp.get("enabled") is True and isinstance(stage, int) and stage > 0:
        yield c.problem(
            config_codes.PREC_AMP_ZERO,
            "Apex amp does not work with ZeRO",
            "training.deepspeed",
            found=f"amp.enabled with stage {stage}",
            hint='use an "fp16" or "bf16" block instead of "amp"',
        )


def lost_updates(c: Context) -> Iterator[Diagnostic]:
    """prec.lost_updates: Adam's updates are at most about the learning rate, and weights near 0.02."""
    largest = c.training.learning_rate * _BF16_HALF_STEP
    if c.training.pure_bf16 and not rounds(c.training.optim) and 0 < largest < _USUAL_WEIGHT:
        found = f"learning_rate: {c.training.learning_rate:g}"
        yield c.at(codes.PREC_LOST_UPDATES(found=found, largest=f"{largest:.1g}"), "training.pure_bf16")


PRECISION_RULES: tuple[Rule, ...] = (full_eval, low_precision, bf16_pretrained, deepspeed_fp16, lost_updates)
