"""Rules for steps: batch sizes, the learning-rate schedule, spikes of the loss (``training.on_spike``)."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.config.sections.training_scale import Parallelism
from paceline.config.sections.training_steps import ROLLBACK, SKIP
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.json_types import as_object
from paceline.plan import codes as plan_codes
from paceline.rules import codes
from paceline.rules.rule import Context, Rule


def positive(c: Context) -> Iterator[Diagnostic]:
    """batch.positive"""
    for name in ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"):
        path = f"training.{name}"
        rows: int = getattr(c.training, name)
        if rows < 1:
            yield c.at(codes.BATCH_POSITIVE(name=name), path)


def deepspeed_triple(c: Context) -> Iterator[Diagnostic]:
    """batch.triple"""
    world, total = c.facts.world_size, c.deepspeed.get("train_batch_size")
    if world is None or not isinstance(total, int) or isinstance(total, bool):
        return
    if not {"train_micro_batch_size_per_gpu", "gradient_accumulation_steps"} <= set(c.deepspeed):
        return  # DeepSpeed derives the missing one from the total
    world //= _model_ranks(c)
    micro, steps = c.training.per_device_train_batch_size, c.training.gradient_accumulation_steps
    if total != micro * steps * world:
        yield c.problem(
            plan_codes.BATCH_TRIPLE,
            f"DeepSpeed's train_batch_size {total} is not micro-batch {micro} x accumulation {steps} x"
            f" processes {world} = {micro * steps * world}",
            "training.deepspeed",
            found=f"train_batch_size: {total}",
            hint=f'set "train_batch_size": "auto" (or {micro * steps * world}); the product is used',
            severity=Severity.WARNING,
        )


def _model_ranks(c: Context) -> int:
    """Return the number of ranks that share the same rows: DeepSpeed's AutoTP times Ulysses."""
    sizes = c.training.parallelism or Parallelism()
    autotp = as_object(c.deepspeed.get("tensor_parallel")).get("autotp_size")
    together = 1
    for axis in ((autotp, sizes.tp_size), (c.deepspeed.get("sequence_parallel_size"), sizes.cp_size)):
        together *= max(size for size in axis if isinstance(size, int)) or 1
    return together if together >= 1 and (c.facts.world_size or 0) % together == 0 else 1


def steps(c: Context) -> Iterator[Diagnostic]:
    """train.max_steps"""
    value = c.training.max_steps
    if value == 0 or value < -1:
        yield c.at(codes.TRAIN_MAX_STEPS(), "training.max_steps")


def warmup(c: Context) -> Iterator[Diagnostic]:
    """train.warmup"""
    if c.training.warmup_steps >= 1 and c.training.warmup_steps != int(c.training.warmup_steps):
        yield c.problem(
            codes.TRAIN_WARMUP,
            "warmup_steps of 1 or more must be a whole number of steps",
            "training.warmup_steps",
            hint=f"warmup_steps: {int(c.training.warmup_steps)}, or a fraction below 1",
        )
    if 0 < c.training.max_steps < c.training.warmup_steps:
        yield c.problem(
            codes.TRAIN_WARMUP,
            "warm-up is longer than the run, so the learning rate would never reach its peak",
            "training.warmup_steps",
            "training.max_steps",
            hint=f"warmup_steps: {max(1, c.training.max_steps // 10)}",
            severity=Severity.WARNING,
        )
    if c.training.warmup_steps > 0 and c.training.lr_scheduler_type == "constant":
        yield c.at(codes.TRAIN_WARMUP_CONSTANT(), "training.lr_scheduler_type", "training.warmup_steps")


BATCH_RULES: tuple[Rule, ...] = (positive, deepspeed_triple, steps, warmup)


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
