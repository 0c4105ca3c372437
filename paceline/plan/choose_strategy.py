"""Choose the strategy: the size rule for ``auto``, its fallbacks, and the strategies that can start here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.config.registries.optimizers import BUILT, supports
from paceline.config.sections.training import TrainingSection
from paceline.config.sections.training_scale import Parallelism
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.plugins.tables import CHOOSERS
from paceline.core.units import human_count
from paceline.plan import codes
from paceline.plan.hardware.probe import OPTIONAL_PACKAGES, Hardware
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import Combination
from paceline.plan.strategies.deepspeed.spec import ZERO2, ZERO3
from paceline.plan.strategies.fsdp import FSDP
from paceline.plan.strategies.replicated import DDP
from paceline.plan.strategies.spec import Job, StrategySpec, missing_package, strategy_spec

KEY = "training.distributed_strategy"


@dataclass(frozen=True)
class StrategyChoice:
    """A strategy and the reason.

    ``sharding``: FSDP's, if the plan chose it in place of a ZeRO stage (None: as configured). ``by_size``:
    chosen by model size, so predicted memory may change it (``plan.planner``).
    """

    strategy: str
    reason: str
    sharding: str | None = None
    by_size: bool = False


def choose_strategy(job: Job) -> StrategyChoice:
    """Return the configured strategy, or ``auto``'s first choice.

    Raises ConfigError if it cannot be started; the config rules refuse unknown names.
    """
    requested = job.training.distributed_strategy
    chosen = (
        by_sections(job.training) or _by_size(job.world_size, job.shape)
        if requested in CHOOSERS
        else StrategyChoice(requested, "named in the config")
    )
    if chosen.by_size:
        return chosen
    spec = strategy_spec(chosen.strategy)
    if ":" in spec.name and not spec.implementation:
        unchecked = ", and strategy_options are not checked" if job.training.strategy_options else ""
        return replace(
            chosen,
            reason="your own class, named in the config; it has no spec, so memory and speed are unknown"
            + unchecked,
        )
    if missing := missing_package(spec, job.hardware):
        raise ConfigError(_not_installed(spec, missing))
    if spec.alone and job.world_size == 1:
        return StrategyChoice(
            spec.alone,
            f"{spec.name} was requested; with one process there is nothing to average, and"
            f" '{spec.alone}' computes the same",
        )
    return chosen


def startable(name: str, by_size: StrategyChoice, hardware: Hardware) -> StrategyChoice:
    """Return ``name`` (of ``auto``'s chain), or FSDP's equivalent sharding if DeepSpeed is not installed."""
    spec = strategy_spec(name)
    if missing_package(spec, hardware) and spec.substitute:
        return _substituted(replace(by_size, strategy=name), *spec.substitute)
    return replace(by_size, strategy=name, sharding=spec.sharding)


def by_sections(training: TrainingSection) -> StrategyChoice | None:
    """Return ``auto``'s choice if a section or a mesh axis requires a strategy; else None."""
    sizes = training.parallelism or Parallelism()
    if training.deepspeed:
        return StrategyChoice("deepspeed", "auto: the config has training.deepspeed")
    if sizes.pp_size > 1:
        return StrategyChoice("pipeline", "auto: training.parallelism.pp_size is above 1")
    if training.fsdp:
        return StrategyChoice("fsdp", "auto: the config has training.fsdp")
    if any(sizes.size(axis) > 1 for axis in ("dp_shard", "cp", "tp")):
        return StrategyChoice("fsdp", "auto: training.parallelism shards the model or the sequence")
    if sizes.dp_replicate_size > 1:
        return StrategyChoice("ddp", "auto: training.parallelism only replicates the model")
    return None


def _by_size(world_size: int, shape: ModelShape | None) -> StrategyChoice:
    """Return ``auto``'s choice without such a requirement: one process, or the size rule."""
    if world_size == 1:
        return StrategyChoice("single", "auto: one process")
    if shape is None:
        why = (
            "the model's size is unknown until it is downloaded; the rule for less than 1B parameters is DDP"
        )
        return StrategyChoice("ddp", f"auto: {why}")
    strategy, why = size_rule(shape.num_parameters)
    return StrategyChoice(
        strategy, f"auto: {human_count(shape.num_parameters)} parameters, {why}", by_size=True
    )


def check_chosen(chosen: StrategyChoice, run: Combination) -> None:
    """Refuse options that the strategy that ``auto`` chose does not support.

    For a strategy named in the config, the rules check this.
    """
    spec = strategy_spec(chosen.strategy)
    refusals = []
    if run.compiled and spec.not_compiled:
        refusals.append(
            (
                codes.STRATEGY_COMPILE,
                f"torch.compile is not supported by this strategy: {spec.not_compiled}",
                "training.torch_compile",
                "torch_compile: false",
            )
        )
    if not supports(run.optimizer.name, spec.state_split):
        optimizer = BUILT[run.optimizer.name]
        code = codes.STRATEGY_ADAFACTOR if optimizer.factored else codes.STRATEGY_OPTIMIZER_SPLIT
        refusals.append((code, optimizer.splits_why, "training.optim", "optim: adamw_torch_fused"))
    if refusals:
        requested = f"auto → {chosen.strategy} ({chosen.reason.removeprefix('auto: ')})"
        raise ConfigError(
            *(
                code(what, where, requested, f"{do}, or distributed_strategy: ddp")
                for code, what, where, do in refusals
            )
        )


def _substituted(chosen: StrategyChoice, strategy: str, sharding: str) -> StrategyChoice:
    """Return FSDP with the sharding that keeps the same states on each rank as the ZeRO stage."""
    return replace(
        chosen,
        strategy=strategy,
        reason=f"{chosen.reason}; DeepSpeed is not installed, and FSDP's {sharding} shards the same states",
        sharding=sharding,
    )


def _not_installed(spec: StrategySpec, package: str) -> Diagnostic:
    hint = f"pip install 'paceline[{package}]'" if package in OPTIONAL_PACKAGES else f"pip install {package}"
    if spec.substitute:
        strategy, sharding = spec.substitute
        hint += (
            f", or distributed_strategy: {strategy} with {strategy}: {sharding}, which shards the same states"
        )
    return codes.PLAN_DEEPSPEED_MISSING(KEY, spec.name, name=spec.name, package=package, hint=hint)


#: Each strategy shards more than the one before; the last never holds the whole model on a card at startup.
CHAIN = (DDP.name, ZERO2.name, ZERO3.name, FSDP.name)
SMALL, MEDIUM = 1_000_000_000, 7_000_000_000


def size_rule(num_parameters: int) -> tuple[str, str]:
    """Return (strategy, reason): DDP below 1B parameters, ZeRO-2 from 1B to 7B, ZeRO-3 above."""
    if num_parameters < SMALL:
        return DDP.name, "below 1B: replicate the model and average the gradients"
    if num_parameters <= MEDIUM:
        return ZERO2.name, "from 1B to 7B: ZeRO-2"
    return ZERO3.name, "above 7B: ZeRO-3"


def chain_from(strategy: str) -> tuple[str, ...]:
    """Return ``strategy`` and its fallbacks."""
    return CHAIN[CHAIN.index(strategy) :]
