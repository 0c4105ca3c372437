"""Rules for number formats, and which of them the device supports."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.config import codes as config_codes
from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import as_object
from paceline.plan.features.precision import rounds
from paceline.plan.hardware.device_kinds import is_accelerator
from paceline.rules import codes
from paceline.rules.rule import Context, Rule

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
