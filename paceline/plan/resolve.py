"""Resolve a config on a machine, choice by choice, before the plan is assembled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from paceline.config.foreign.deepspeed import batch_of
from paceline.config.optim_args import parse_optim_args
from paceline.config.optimizers import BUILT
from paceline.config.sections.training import TrainingSection
from paceline.core.diagnostics import Diagnostic, errors
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject
from paceline.core.tables import CHOOSERS
from paceline.plan.adapter import adapter_of, check_adapter
from paceline.plan.algorithms.rollout import RolloutSizes, check_rollout, rollout_sizes
from paceline.plan.batch import BatchSplit, split_batch
from paceline.plan.bf16_weights import check_bf16_weights, rounds
from paceline.plan.expert_adapters import check_expert_adapters
from paceline.plan.fp8 import check_fp8
from paceline.plan.mesh import Mesh
from paceline.plan.model.family_strategy import check_family
from paceline.plan.model.router_loss import check_router, check_router_loss
from paceline.plan.parts import AdapterSpec, OptimizerSpec
from paceline.plan.plan import Decision, Precision
from paceline.plan.precision import check_full_eval, choose_precision
from paceline.plan.strategies.base import strategy_spec
from paceline.plan.strategies.job import Findings, Job
from paceline.plan.strategies.options import EngineOptions
from paceline.plan.strategy import StrategyChoice, check_chosen

T = TypeVar("T")


@dataclass(frozen=True)
class ResolvedEngine:
    """What follows from the strategy: mesh, batch, ``Plan.engine``, and decisions."""

    mesh: Mesh
    batch: BatchSplit
    options: EngineOptions
    decisions: tuple[Decision, ...]


def _engine(chosen: StrategyChoice, job: Job, precision: Precision) -> ResolvedEngine:
    spec, findings = strategy_spec(chosen.strategy), Findings()
    mesh = spec.mesh(job, findings)
    findings.raise_if_refused()
    t = job.training
    requested = t.per_device_train_batch_size, t.gradient_accumulation_steps
    micro, accumulation, from_total = batch_of(t.deepspeed, *requested, mesh.data_parallel_size)
    batch = split_batch(micro, accumulation, mesh.data_parallel_size)
    about_mesh = tuple(findings.decisions)
    options = spec.options(job, mesh, batch, precision, findings)
    findings.raise_if_refused()
    about = findings.decisions[len(about_mesh) :]
    decision = (Decision("train_batch_size", str(batch.global_batch), from_total),) if from_total else ()
    return ResolvedEngine(mesh, batch, options, (*about_mesh, *decision, *about))


@dataclass(frozen=True)
class Resolved:
    """The resolved strategy, adapter, optimizer and precision, and what follows from the strategy.

    ``rollout``: None unless rows are prompts, which the model answers.
    """

    chosen: StrategyChoice
    adapter: AdapterSpec | None
    optimizer: OptimizerSpec
    precision: Precision
    engine: ResolvedEngine
    rollout: RolloutSizes | None


def resolve(chosen: StrategyChoice | None, job: Job, found: list[Diagnostic]) -> Resolved:
    """Resolve all choices, even if an earlier one failed.

    Raises ConfigError with all errors: those in ``found`` and those found here.
    """
    training, hardware = job.training, job.hardware
    adapter = attempt(lambda: adapter_of(job.lora), found)
    args = attempt(lambda: parse_optim_args(training.optim_args), found)
    precision = choose_precision(
        training.mixed_precision, hardware, job.config.model.dtype, rounds=rounds(training.optim)
    )
    optimizer = OptimizerSpec(
        name=training.optim,
        learning_rate=training.learning_rate,
        weight_decay=training.weight_decay,
        betas=(training.adam_beta1, training.adam_beta2),
        eps=training.adam_epsilon,
        args={**_arguments_of(training, precision), **(args or {})},
    )
    if chosen is not None and training.distributed_strategy in CHOOSERS:
        attempt(lambda: check_chosen(chosen, optimizer, compiled=training.torch_compile), found)
    if precision.master == "bfloat16" and chosen and not strategy_spec(chosen.strategy).shards_weights:
        precision = replace(precision, reduce="bfloat16")  # gradients are the weights' dtype
    precision = replace(precision, fp8=training.fp8)
    found += check_full_eval(training, precision)
    engine = None
    if chosen is not None and not any(d.code.startswith("plan.world") for d in found):
        engine = attempt(lambda: _engine(chosen, job.sharded(chosen.sharding), precision), found)
    if chosen is not None and engine is not None:
        here = hardware.packages is not None
        found += check_adapter(
            adapter, strategy_spec(chosen.strategy), engine.mesh, precision.compute, engine.options, here=here
        )
    found += check_expert_adapters(adapter, job.shape, training)
    found += check_router(job.shape, training, adapters=job.lora is not None)
    if engine is not None:
        found += check_family(job.shape, engine.mesh)
        found += check_router_loss(job.shape, training, engine.mesh)
    strategy, mesh = (chosen.strategy if chosen else None), (engine.mesh if engine else None)
    found += check_bf16_weights(optimizer, precision, adapter, strategy, mesh)
    found += check_fp8(training, hardware, precision, adapter, strategy, mesh)
    rollout = None
    if engine is not None and job.algorithm.on_policy:
        rollout = rollout_sizes(job.algorithm, training, engine.batch)
        found += check_rollout(rollout)
    if errors(found) or chosen is None or engine is None:
        raise ConfigError(*errors(found))
    return Resolved(chosen, adapter, optimizer, precision, engine, rollout)


def _arguments_of(training: TrainingSection, precision: Precision) -> JsonObject:
    """Return the arguments of the optimizer that follow from other keys of ``training``."""
    known, found = BUILT.get(training.optim), dict[str, Json]()
    if known is not None and "warmup_steps" in known.takes and training.warmup_steps >= 1:
        found["warmup_steps"] = int(training.warmup_steps)
    if known is not None and known.rounds:
        found["seed"] = training.seed
    if known is not None and known.orthogonalises:
        low = precision.compute in ("bfloat16", "float16")
        found["ns_dtype"] = "bfloat16" if low else "float32"
    return found


def attempt(choice: Callable[[], T], found: list[Diagnostic]) -> T | None:
    """Return ``choice()``, or None with its errors added to ``found``, so that all are reported together."""
    try:
        return choice()
    except ConfigError as exc:
        found.extend(exc.diagnostics)
        return None
