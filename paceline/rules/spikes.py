"""Rules for what a spike of the loss does (``training.on_spike``)."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.config.sections.training_steps import ROLLBACK, SKIP
from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import as_object
from paceline.rules import codes
from paceline.rules.rule import Context, Rule

_KEY = "training.on_spike"


def skipping(c: Context) -> Iterator[Diagnostic]:
    """train.on_spike"""
    if c.training.on_spike != SKIP:
        return
    if c.algorithm.value_model:
        yield c.problem(
            codes.TRAIN_ON_SPIKE,
            f"{c.algorithm.name} trains two models, whose steps are measured and made one after the other",
            _KEY,
            "training.algorithm",
            hint="on_spike: warn",
        )
    named = c.strategy.zero_stage if c.strategy is not None else None
    stage = c.zero.get("stage", 0) if c.training.deepspeed else named
    if not stage:
        return
    if c.training.mixed_precision == "fp16":
        yield c.problem(
            codes.TRAIN_ON_SPIKE,
            f"DeepSpeed's ZeRO-{stage} would halve the loss scale of fp16 with each step that is left out",
            _KEY,
            "training.mixed_precision",
            hint="mixed_precision: bf16, or on_spike: rollback",
        )
    unchecked = as_object(c.deepspeed.get("bf16")).get("check_grad_overflow") is False
    sums = as_object(c.deepspeed.get("data_types")).get("grad_accum_dtype")
    if c.training.deepspeed and (unchecked or (stage == 1 and sums == "fp32")):
        key = "bf16: check_grad_overflow" if unchecked else "data_types: grad_accum_dtype"
        yield c.problem(
            codes.TRAIN_ON_SPIKE,
            f"with {key} DeepSpeed's ZeRO-{stage} cannot leave out a step",
            _KEY,
            "training.deepspeed",
            hint=f"remove {key} from training.deepspeed, or on_spike: rollback",
        )


def going_back(c: Context) -> Iterator[Diagnostic]:
    """train.on_spike"""
    if c.training.on_spike != ROLLBACK:
        return
    if c.training.save_strategy == "no":
        yield c.problem(
            codes.TRAIN_ON_SPIKE,
            "rollback goes back to a checkpoint, but this run saves none",
            _KEY,
            "training.save_strategy",
            hint="save_strategy: steps, or on_spike: skip",
        )
    if c.algorithm.generation(c.training) is not None:
        yield c.problem(
            codes.TRAIN_ON_SPIKE,
            "the model answers the rows of this run itself, so that the same answers do not come again",
            _KEY,
            "training.algorithm",
            hint="on_spike: warn",
        )


SPIKE_RULES: tuple[Rule, ...] = (skipping, going_back)
