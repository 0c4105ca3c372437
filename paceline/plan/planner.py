"""``resolved_plan``: config and hardware in, plan out: each choice is resolved, then the plan is assembled.

Pure: the same input gives the same plan, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from paceline.config.backend_files.deepspeed.deepspeed_file import batch_of
from paceline.config.registries.optimizers import BUILT, parse_optim_args
from paceline.config.sections.lora import LoraSection
from paceline.config.sections.training import TrainingSection
from paceline.core.diagnostics import Diagnostic, errors
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json
from paceline.core.package import PACKAGE_VERSION
from paceline.core.plugins.tables import CHOOSERS
from paceline.core.units import human_seconds
from paceline.plan import codes
from paceline.plan.algorithms.rollout import (
    RolloutSizes,
    check_rollout,
    decoding_decision,
    evaluation_decision,
    gathered_problems,
    rollout_decision,
    rollout_sizes,
    start_decision,
    start_problems,
    with_generation,
)
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.choose_strategy import StrategyChoice, check_chosen, choose_strategy
from paceline.plan.cost.memory.fits import room_decisions, room_of, room_problems, rows_problems
from paceline.plan.cost.memory.model_states import memory_of, with_snapshot
from paceline.plan.features.attention import choose_attention, choose_packing, selection_decisions
from paceline.plan.features.compute_options import (
    choose_backend,
    compute_decisions,
    idle_decisions,
    option_decisions,
    row_kernel_decisions,
)
from paceline.plan.features.experts import (
    RouterOptions,
    check_expert_adapters,
    check_router,
    check_router_loss,
    expert_decisions,
    grouped_decisions,
    router_decisions,
    router_options,
)
from paceline.plan.features.freezing import (
    Freezing,
    check_freezing,
    check_rounding,
    freezing_decisions,
)
from paceline.plan.features.lora import adapter_decisions, adapter_of, check_adapter, check_patterns
from paceline.plan.features.optimizer import check_targets, optimizer_decision
from paceline.plan.features.precision import (
    check_bf16_weights,
    check_fp8,
    check_full_eval,
    choose_precision,
    fp8_decisions,
    rounds,
)
from paceline.plan.features.vision import VisionChoice
from paceline.plan.hardware.device_kinds import is_accelerator, kind_of
from paceline.plan.hardware.probe import Hardware
from paceline.plan.mesh import BatchSplit, Mesh, split_batch
from paceline.plan.model.parameter_list import targets_of
from paceline.plan.model.read_config import scoring
from paceline.plan.model.shape import ModelShape
from paceline.plan.model.supported import check_encoder, check_family, encoders_beside
from paceline.plan.plan import (
    WARNING,
    AdapterSpec,
    Combination,
    Decision,
    OptimizerSpec,
    OtherModel,
    Plan,
    Precision,
)
from paceline.plan.strategies.deepspeed.spec import nvme_decisions
from paceline.plan.strategies.spec import Findings, Job, StrategySpec, strategy_spec
from paceline.plan.strategy_options import NO_OPTIONS, EngineOptions
from paceline.plan.timeouts import STEP_KEY, WaitLimits

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
    vision: VisionChoice


def resolve(chosen: StrategyChoice | None, job: Job, problems: list[Diagnostic]) -> Resolved:
    """Resolve all choices, even if an earlier one failed.

    Raises ConfigError with all errors: those in ``problems`` and those found here.
    """
    training, shape = job.training, job.shape
    # What does not depend on the strategy.
    vision = VisionChoice.of(job)
    adapter = attempt(lambda: adapter_of(job.lora, vision=vision.on), problems)
    freezing = Freezing.configured(training, shape, tower=vision.on and job.lora is None)
    router = router_options(training, shape.router_aux_loss if shape else 0.0)
    optimizer = _optimizer(training, job.lora, problems)
    optimizer = replace(optimizer, rate_ratios=vision.rate_ratios(job))
    precision = choose_precision(
        training.mixed_precision,
        job.hardware,
        job.config.model.dtype,
        bf16_weights=training.pure_bf16 or rounds(optimizer.name),
    )
    optimizer = _of_heads(_in_dtype(optimizer, precision), shape)
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
    problems += check_full_eval(run, job.hardware)
    problems += check_targets(optimizer, shape)
    problems += check_patterns(adapter, shape)
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
        problems += vision.check_order(spec, engine.options)
        problems += check_rounding(shape, freezing, spec.state_split, precision, routers=router.frozen)
    problems += check_encoder(shape, training.algorithm, job.algorithm.encodes, adapter)
    problems += check_expert_adapters(run, shape)
    problems += check_router(shape, router, adapters=job.lora is not None)
    mesh = None if cut is None else cut.mesh
    problems += check_freezing(shape, freezing, mesh, adapters=job.lora is not None)
    problems += vision.check_rates(job, freezing)
    problems += vision.check(job, mesh)
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
    return Resolved(chosen, adapter, optimizer, precision, router, engine, rollout, vision)


def _optimizer(
    training: TrainingSection, lora: LoraSection | None, problems: list[Diagnostic]
) -> OptimizerSpec:
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
        b_rate_ratio=(lora.loraplus_lr_ratio if lora else None) or 1.0,
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


def _of_heads(optimizer: OptimizerSpec, shape: ModelShape | None) -> OptimizerSpec:
    """Return the optimizer with the sizes of the model's heads, if it needs them and they are known."""
    row = BUILT.get(optimizer.name)
    if row is None or not row.by_blocks or shape is None:
        return optimizer
    return replace(optimizer, args={"dim": shape.hidden_size, "n_heads": shape.heads, **optimizer.args})


def attempt(choice: Callable[[], T], problems: list[Diagnostic]) -> T | None:
    """Return ``choice()``, or None and its errors in ``problems``, so that all are reported at once."""
    try:
        return choice()
    except ConfigError as exc:
        problems.extend(exc.diagnostics)
        return None


def resolved_plan(job: Job, *, ruled: Sequence[Diagnostic] = ()) -> Plan:
    """Return the plan for a job. ``ruled``: problems found by the rules; warnings go into the plan.

    Raises ConfigError with all errors at once: the rules' and the planner's.
    """
    problems = [*check_world(job.hardware, job.world_size, job.num_nodes), *ruled]
    shape = attempt(job.model_shape, problems)
    if shape is not None:
        shape = job.algorithm.with_head(shape, job.training)
    job = replace(job, shape=shape)
    job = VisionChoice.of(job).whole(job)

    def made(chosen: StrategyChoice | None) -> Plan:
        warned = list(problems)
        return _with_room(
            _checked(_assembled(job, resolve(chosen, job, warned), warned)), job.hardware, job.needs_room
        )

    chosen = attempt(lambda: choose_strategy(job), problems)
    if chosen is None or not chosen.by_size or errors(problems):
        return made(chosen)
    from paceline.plan.layout_search import plan_auto  # with the search, which few plans need

    return plan_auto(chosen, job.hardware, made)


def _checked(plan: Plan) -> Plan:
    """Return ``plan`` with its algorithm's warnings. Raises ConfigError for its errors."""
    problems = [*algorithm_spec(plan.algorithm).check_plan(plan), *encoders_beside(plan)]
    if errors(problems):
        raise ConfigError(*problems)
    return replace(plan, decisions=(*plan.decisions, *_warnings(problems))) if problems else plan


def _with_room(plan: Plan, hardware: Hardware, needed: bool) -> Plan:
    """Return ``plan`` with its memory and what follows. Raises ConfigError if it must fit and does not."""
    plan = with_generation(replace(plan, memory=memory_of(plan, hardware)), hardware)
    written = [
        decision
        for decision in (decoding_decision(plan), start_decision(plan), evaluation_decision(plan))
        if decision is not None
    ]
    plan = replace(plan, decisions=(*plan.decisions, *written))
    room = room_of(plan, hardware)
    problems = room_problems(plan, hardware, room)
    own_keys = [
        *rows_problems(plan, hardware),
        *gathered_problems(plan, hardware),
        *start_problems(plan, hardware),
    ]
    if needed and (problems or own_keys):
        from paceline.plan.layout_search import what_fits

        fits = what_fits(plan, hardware) if problems else []
        raise ConfigError(*(replace(d, hint="; or ".join(fits) or d.hint) for d in problems), *own_keys)
    decisions = (
        *plan.decisions,
        *nvme_decisions(plan),
        *room_decisions(plan, hardware, room),
        *_warnings([*step_limit_warning(plan, hardware)]),
    )
    return with_snapshot(
        replace(plan, decisions=decisions), hardware, (room.states_host if room else None) or 0
    )


def _assembled(job: Job, resolved: Resolved, warnings: Sequence[Diagnostic]) -> Plan:
    """Return the plan of the resolved choices, without memory; ``warnings`` becomes warnings."""
    config, hardware, shape, spec = job.config, job.hardware, job.shape, job.algorithm
    training, engine, precision = config.training, resolved.engine, resolved.precision
    length = config.data.max_length
    backend, about_backend = choose_backend(training.ddp_backend, hardware, WaitLimits.of(training))
    attention, kernel = choose_attention(config.model.attn_implementation, hardware, precision, shape, length)
    packing = choose_packing(job, apart=kernel is not None)
    reference, models, about_models = spec.models(training, resolved.adapter)
    plan = Plan(
        algorithm=training.algorithm,
        strategy=resolved.chosen.strategy,
        strategy_reason=resolved.chosen.reason,
        mesh=engine.mesh,
        world_size=job.world_size,
        num_nodes=job.num_nodes,
        device=hardware.device,
        device_indices=hardware.device_indices,
        backend=backend,
        timeout_seconds=training.ddp_timeout,
        precision=precision,
        batch=engine.batch,
        seq_len=length,
        packing=packing.choice == "on",
        attention=attention.choice,
        flash=kernel.flash if kernel else "",
        whole_scores=kernel is not None and kernel.whole_scores,
        recompute=training.gradient_checkpointing,
        compile=training.torch_compile,
        optimizer=resolved.optimizer,
        decisions=(),
        config=config,
        config_digest=config.digest(),
        run_dir=job.run_dir,
        shape=shape,
        launcher=job.launcher,
        paceline_version=PACKAGE_VERSION,
        engine=engine.options,
        adapter=resolved.adapter,
        reference=reference,
        vision=resolved.vision.on,
        models={role: _with_shape(role, other, shape, job.others) for role, other in models.items()},
    )
    decisions = (
        *_main_decisions(hardware, job.world_size, job.num_nodes, resolved),
        *engine.decisions,
        about_backend,
        attention,
        *resolved.vision.decisions(),
        *_model_decisions(plan, resolved.router, hardware),
        *about_models,
        *_training_decisions(plan, resolved.rollout, hardware),
        packing,
        *compute_decisions(plan),
        *option_decisions(training, hardware, plan.strategy, prompts=spec.on_policy),
        *idle_decisions(config, engine.mesh, plan.adapter),
        *_warnings(warnings),
    )
    return replace(plan, decisions=decisions)


def _model_decisions(plan: Plan, router: RouterOptions, hardware: Hardware) -> Iterator[Decision]:
    yield from selection_decisions(plan.shape)
    yield from row_kernel_decisions(plan, hardware)
    yield from adapter_decisions(plan.adapter, plan.shape)
    yield from expert_decisions(plan.shape, plan.adapter)
    yield from router_decisions(plan.shape, router)
    yield from freezing_decisions(plan.shape, Freezing.of(plan))
    yield from grouped_decisions(plan.shape, hardware.capability, plan.precision.compute)


def _training_decisions(plan: Plan, rollout: RolloutSizes | None, hardware: Hardware) -> Iterator[Decision]:
    if plan.config.training.save_strategy == "no":
        why = "no checkpoint, nor where early stopping or a callback ends the run; a signal saves one"
        yield Decision("training.save_strategy", "no", why)
    if rollout:
        yield rollout_decision(rollout)
    yield optimizer_decision(plan.optimizer, hardware, plan.shape)
    yield from fp8_decisions(plan)


def _warnings(warnings: Sequence[Diagnostic]) -> Iterator[Decision]:
    """Yield the warnings of the rules; the engine's decisions report a corrected batch size."""
    for d in (d for d in warnings if d.code != codes.BATCH_TRIPLE.name):
        yield Decision(d.where or d.code, f"{WARNING}{d.code}", f"{d.what}; {d.hint}")


def _with_shape(
    role: str, model: OtherModel, main_shape: ModelShape | None, others: Mapping[str, ModelShape | None]
) -> OtherModel:
    """Return a further model with its shape, with a scalar head for value and reward models."""
    shape = main_shape if model.model is None else others.get(model.model)
    if shape is not None and role in ("value", "reward"):
        shape = scoring(shape)
    return replace(model, shape=shape)


def _main_decisions(
    hardware: Hardware, world_size: int, num_nodes: int, resolved: Resolved
) -> tuple[Decision, ...]:
    precision = resolved.precision
    devices = hardware.num_devices
    on_each_node = "one per device" if world_size // num_nodes == devices else f"{devices} device(s) per node"
    decisions = [
        Decision("device", hardware.device, f"{hardware.device_note}; {hardware.device_name}"),
        Decision("training.distributed_strategy", resolved.chosen.strategy, resolved.chosen.reason),
        Decision(
            "processes",
            f"{world_size} process(es) on {num_nodes} node(s)",
            on_each_node if is_accelerator(hardware.device) else f"{hardware.cpu_count} cores per node",
        ),
        Decision(
            "batch",
            str(resolved.engine.batch),
            "per_device_train_batch_size × gradient_accumulation_steps × data-parallel ranks",
        ),
        Decision(
            "training.mixed_precision",
            precision.compute,
            f"{precision.reason}; master weights {precision.master}, gradients averaged in"
            f" {precision.reduce}",
        ),
    ]
    per_node = world_size // num_nodes
    if hardware.device == "cpu" and per_node > hardware.cpu_count:
        note = f"{per_node} processes share {hardware.cpu_count} cores, which slows each of them down"
        decisions.append(Decision("cores", "shared", note))
    return tuple(decisions)


def check_world(hardware: Hardware, world_size: int, num_nodes: int) -> list[Diagnostic]:
    """Return errors in the number of processes and nodes."""
    if world_size < 1 or num_nodes < 1:
        return [codes.PLAN_WORLD_SIZE("--nproc", f"{world_size} on {num_nodes} nodes")]
    if world_size % num_nodes:
        return [codes.PLAN_WORLD_NODES("--nnodes", f"{world_size} processes on {num_nodes} nodes")]
    per_node, devices = world_size // num_nodes, hardware.num_devices
    if not is_accelerator(hardware.device) or per_node <= devices:
        return []
    label = kind_of(hardware.device).label
    return [
        codes.PLAN_TOO_FEW_DEVICES(
            "--nproc", str(per_node), per_node=per_node, num_devices=devices, label=label
        )
    ]


def step_limit_warning(plan: Plan, hardware: Hardware) -> Iterator[Diagnostic]:
    """Yield a warning if a step is predicted to last longer than ``step_timeout``: no rank would be late."""
    limit = plan.config.training.step_timeout
    if limit is None or plan.world_size == 1:
        return
    from paceline.plan.cost.from_plan import predicted_step

    seconds = predicted_step(plan, hardware)
    if seconds is not None and seconds > limit:
        yield codes.PLAN_STEP_TIMEOUT(
            STEP_KEY,
            f"step_timeout: {limit} s",
            human_seconds=human_seconds(seconds),
            hint=f"set step_timeout: {max(60, round(5 * seconds))}, or leave it empty",
        )
