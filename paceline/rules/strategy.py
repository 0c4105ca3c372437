"""Rules for what a strategy cannot be combined with, each naming the nearest alternative."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from paceline.config.registries.optimizers import BUILT, runs_on, supports
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ConfigError
from paceline.plan import codes as plan_codes
from paceline.plan.strategies.spec import strategy_spec
from paceline.rules import codes
from paceline.rules.rule import Context, Rule, checked, wrong_options

_STRATEGY, _OPTIONS = "training.distributed_strategy", "training.strategy_options"


def zero_stage(c: Context) -> Iterator[Diagnostic]:
    """zero.stage"""
    stage = c.zero.get("stage", 0)
    if isinstance(stage, bool) or not isinstance(stage, (int, float)) or stage not in (0, 1, 2, 3):
        yield c.at(codes.ZERO_STAGE(found=f"stage: {stage}"), "training.deepspeed")


def float64(c: Context) -> Iterator[Diagnostic]:
    """strategy.float64"""
    if c.config.model.dtype == "float64" and c.strategy is not None and not c.strategy.float64:
        yield c.at(codes.STRATEGY_FLOAT64(name=c.strategy.name), "model.dtype", _STRATEGY)


def fp16(c: Context) -> Iterator[Diagnostic]:
    """strategy.fp16_pipeline"""
    if c.training.mixed_precision != "fp16":
        return
    if c.strategy is not None and not c.strategy.loss_scale:
        yield c.at(
            codes.STRATEGY_FP16_PIPELINE(
                name=c.strategy.name, others="no" if c.facts.bf16 is False else "bf16 or no"
            ),
            "training.mixed_precision",
            _STRATEGY,
        )


def compiled(c: Context) -> Iterator[Diagnostic]:
    """strategy.compile"""
    if not c.training.torch_compile or c.strategy is None:
        return
    context = c.training.parallelism is not None and (c.training.parallelism.cp_size or 1) > 1
    context = context and not c.strategy.not_compiled
    if context or c.strategy.not_compiled:
        why = c.strategy.not_compiled or "context parallelism communicates inside attention"
        yield c.problem(
            plan_codes.STRATEGY_COMPILE,
            f"torch.compile is not supported here: {why}",
            "training.torch_compile",
            "training.parallelism.cp_size" if context else _STRATEGY,
            hint="set torch_compile: false, "
            + ("or cp_size: 1" if context else "or distributed_strategy: fsdp"),
        )


def recomputed_twice(c: Context) -> Iterator[Diagnostic]:
    """strategy.pipeline_recompute"""
    schedule = c.training.parallelism.pp_schedule if c.training.parallelism else None
    if (
        c.training.gradient_checkpointing
        and c.strategy is not None
        and c.strategy.stages
        and schedule in ("zero_bubble", "zbv")
    ):
        yield c.at(
            codes.STRATEGY_PIPELINE_RECOMPUTE(schedule=schedule),
            "training.gradient_checkpointing",
            "training.parallelism.pp_schedule",
        )


def optimizer_split(c: Context) -> Iterator[Diagnostic]:
    """strategy.adafactor, strategy.optimizer_split"""
    name = c.training.optim
    if c.strategy is not None and not supports(name, c.strategy.state_split):
        yield c.problem(
            plan_codes.STRATEGY_ADAFACTOR if BUILT[name].factored else plan_codes.STRATEGY_OPTIMIZER_SPLIT,
            BUILT[name].splits_why,
            "training.optim",
            _STRATEGY,
            hint="set optim: adamw_torch_fused"
            + (", or distributed_strategy: ddp" if runs_on(name, c.facts.device) else ""),
        )


def threads_of_one_process(c: Context) -> Iterator[Diagnostic]:
    """strategy.data_parallel"""
    if c.training.fsdp or c.training.deepspeed:
        return  # reported by back.strategy_vs_file
    if c.named_strategy is not None and c.named_strategy.multi_device:
        yield c.at(codes.STRATEGY_DATA_PARALLEL(), _STRATEGY)


def of_the_spec(c: Context) -> Iterable[Diagnostic]:
    """Run the checks of the strategy's own spec; for a user-defined one that cannot be loaded, say why.

    strategy.options. The checks may trust the types of the options.
    """
    name = c.training.distributed_strategy
    try:
        spec = strategy_spec(name) if ":" in name else c.strategy
    except ConfigError as error:
        return tuple(replace(d, where=c.place(_STRATEGY)) for d in error.diagnostics)
    if spec is None:
        return ()
    declared = spec.strategy_options if spec.implementation else None  # a class without a spec declares none
    wrong = (
        () if declared is None else tuple(wrong_options(c, codes.STRATEGY_OPTIONS, name, _OPTIONS, declared))
    )
    return wrong or checked(c, spec, _STRATEGY)


def options(c: Context) -> Iterator[Diagnostic]:
    """strategy.options"""
    if c.training.strategy_options and ":" not in c.training.distributed_strategy:
        yield c.problem(
            codes.STRATEGY_OPTIONS,
            "strategy_options are passed only to your own strategy",
            _OPTIONS,
            _STRATEGY,
            hint="set distributed_strategy: module:SPEC, or module:Class",
            severity=Severity.WARNING,
        )


STRATEGY_RULES: tuple[Rule, ...] = (
    of_the_spec,
    options,
    zero_stage,
    float64,
    fp16,
    compiled,
    recomputed_twice,
    optimizer_split,
    threads_of_one_process,
)
