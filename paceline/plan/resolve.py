"""Resolve a config on a machine, choice by choice, before the plan is assembled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from paceline.config.backend_files.deepspeed.deepspeed_file import batch_of
from paceline.config.registries.optimizers import BUILT, parse_optim_args
from paceline.config.sections.training import TrainingSection
from paceline.core.diagnostics import Diagnostic, errors
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json
from paceline.core.plugins.tables import CHOOSERS
from paceline.plan.algorithms.rollout import RolloutSizes, check_rollout, rollout_sizes
from paceline.plan.choose_strategy import StrategyChoice, check_chosen
from paceline.plan.features.experts import (
    RouterOptions,
    check_expert_adapters,
    check_router,
    check_router_loss,
    router_options,
)
from paceline.plan.features.lora import adapter_of, check_adapter
from paceline.plan.features.optimizer import check_targets
from paceline.plan.features.precision import (
    check_bf16_weights,
    check_fp8,
    check_full_eval,
    choose_precision,
    rounds,
)
from paceline.plan.job_to_check import Combination
from paceline.plan.mesh import BatchSplit, Mesh, split_batch
from paceline.plan.model.parameter_list import targets_of
from paceline.plan.model.supported import check_family
from paceline.plan.plan import AdapterSpec, Decision, OptimizerSpec, Precision
from paceline.plan.strategies.job import Findings, Job
from paceline.plan.strategies.spec import StrategySpec, strategy_spec
from paceline.plan.strategy_options import NO_OPTIONS, EngineOptions

T = TypeVar("T")


@dataclass(frozen=True)
class ResolvedEngine:
    """What follows from the strategy: mesh, batch, ``Plan.engine``, and decisions.

    ``options`` are the defaults until the strategy has resolved its own: the mesh is enough for most checks.
    """

    mesh: Mesh
    batch: BatchSplit
    decisions: tuple[Decision, ...]
    options: EngineOptions = NO_OPTIONS


def _divided(spec: StrategySpec, job: Job) -> ResolvedEngine:
    findings, t = Findings(), job.training
    mesh = spec.mesh(job, findings)
    findings.raise_if_refused()
    micro, accumulation, from_total = batch_of(
        t.deepspeed, t.per_device_train_batch_size, t.gradient_accumulation_steps, mesh.data_parallel_size
    )
    batch = split_batch(micro, accumulation, mesh.data_parallel_size)
    if from_total:
        findings.explain("train_batch_size", str(batch.global_batch), from_total)
    return ResolvedEngine(mesh, batch, tuple(findings.decisions))


def _with_options(cut: ResolvedEngine, spec: StrategySpec, job: Job, precision: Precision) -> ResolvedEngine:
    findings = Findings()
    options = spec.options(job, cut.mesh, cut.batch, precision, findings)
    findings.raise_if_refused()
    return replace(cut, options=options, decisions=(*cut.decisions, *findings.decisions))


@dataclass(frozen=True)
class Resolved:
    """The resolved strategy, adapter, optimizer, precision and routers, and what follows from the strategy.

    ``rollout``: None unless rows are prompts, which the model answers.
    """

    chosen: StrategyChoice
    adapter: AdapterSpec | None
    optimizer: OptimizerSpec
    precision: Precision
    router: RouterOptions
    engine: ResolvedEngine
    rollout: RolloutSizes | None


def resolve(chosen: StrategyChoice | None, job: Job, problems: list[Diagnostic]) -> Resolved:
    """Resolve all choices, even if an earlier one failed.

    Raises ConfigError with all errors: those in ``problems`` and those found here.
    """
    training, shape = job.training, job.shape
    # What does not depend on the strategy.
    adapter = attempt(lambda: adapter_of(job.lora), problems)
    router = router_options(training, shape.router_aux_loss if shape else 0.0)
    optimizer = _optimizer(training, problems)
    precision = choose_precision(
        training.mixed_precision,
        job.hardware,
        job.config.model.dtype,
        bf16_weights=training.pure_bf16 or rounds(optimizer.name),
    )
    optimizer = _in_dtype(optimizer, precision)
    spec = strategy_spec(chosen.strategy) if chosen else None
    if precision.master == "bfloat16" and spec is not None and not spec.shards_weights:
        precision = replace(precision, reduce="bfloat16")  # gradients are the weights' dtype
    precision = replace(precision, fp8=training.fp8)
    run = Combination(
        precision,
        optimizer,
        adapter,
        compiled=training.torch_compile,
        full_eval=tuple(w for w in ("bf16", "fp16") if getattr(training, f"{w}_full_eval")),
        strategy=chosen.strategy if chosen else None,
        pure_bf16=training.pure_bf16,
    )
    if chosen is not None and training.distributed_strategy in CHOOSERS:
        attempt(lambda: check_chosen(chosen, run), problems)
    problems += check_full_eval(run)
    problems += check_targets(optimizer, shape)
    # The strategy's mesh, batch and options, and what they do not go together with.
    cut, engine, rollout = None, None, None
    if chosen is not None and spec is not None and not any(d.code.startswith("plan.world") for d in problems):
        sharded = job.sharded(chosen.sharding)
        cut = attempt(partial(_divided, spec, sharded), problems)
        if cut is not None:
            engine = attempt(partial(_with_options, cut, spec, sharded, precision), problems)
    if spec is not None and engine is not None:
        here = job.hardware.packages is not None
        problems += check_adapter(adapter, spec, engine.mesh, precision.compute, engine.options, here=here)
    problems += check_expert_adapters(run, shape)
    problems += check_router(shape, router, adapters=job.lora is not None)
    if cut is not None:
        run = replace(run, mesh=cut.mesh)
        problems += check_family(shape, cut.mesh)
        problems += check_router_loss(shape, router.loss, cut.mesh, compiled=run.compiled)
    problems += check_bf16_weights(run)
    problems += check_fp8(run, job.hardware)
    if cut is not None and job.algorithm.on_policy:
        rollout = rollout_sizes(job.algorithm, training, cut.batch)
        problems += check_rollout(rollout)
    if errors(problems) or chosen is None or engine is None:
        raise ConfigError(*errors(problems))
    return Resolved(chosen, adapter, optimizer, precision, router, engine, rollout)


def _optimizer(training: TrainingSection, problems: list[Diagnostic]) -> OptimizerSpec:
    """Return the optimizer with the arguments that keys of ``training`` set; errors go to ``problems``."""
    row, args = BUILT.get(training.optim), dict[str, Json]()
    if row is not None and "warmup_steps" in row.takes and training.warmup_steps >= 1:
        args["warmup_steps"] = int(training.warmup_steps)
    if row is not None and row.rounds:
        args["seed"] = training.seed
    return OptimizerSpec(
        name=training.optim,
        learning_rate=training.learning_rate,
        weight_decay=training.weight_decay,
        betas=(training.adam_beta1, training.adam_beta2),
        eps=training.adam_epsilon,
        args={**args, **(attempt(lambda: parse_optim_args(training.optim_args), problems) or {})},
        target_modules=targets_of(training.optim_target_modules),
    )


def _in_dtype(optimizer: OptimizerSpec, precision: Precision) -> OptimizerSpec:
    """Return the optimizer with the dtype of its iterations, which follows from the compute dtype."""
    row = BUILT.get(optimizer.name)
    if row is None or not row.orthogonalises:
        return optimizer
    return replace(
        optimizer,
        args={
            "ns_dtype": "bfloat16" if (precision.compute in ("bfloat16", "float16")) else "float32",
            **optimizer.args,
        },
    )


def attempt(choice: Callable[[], T], problems: list[Diagnostic]) -> T | None:
    """Return ``choice()``, or None and its errors in ``problems``, so that all are reported at once."""
    try:
        return choice()
    except ConfigError as exc:
        problems.extend(exc.diagnostics)
        return None
