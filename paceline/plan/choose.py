"""``make_plan``: config and hardware in, plan out. Pure: the same input gives the same plan, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from paceline import __version__
from paceline.config.foreign.deepspeed import batch_of
from paceline.config.rules import Facts, check
from paceline.config.schema import Config
from paceline.config.source import Source
from paceline.core.diagnostics import Diagnostic, errors
from paceline.core.errors import ConfigError
from paceline.plan.adapter import adapter_decisions, adapter_of, check_adapter
from paceline.plan.batch import BatchSplit, split_batch
from paceline.plan.engine import Job, resolve_engine, resolve_mesh
from paceline.plan.fastest import NAME as FASTEST
from paceline.plan.fastest import plan_fastest
from paceline.plan.hardware import Hardware
from paceline.plan.knobs import choose_attention, choose_backend, knob_decisions, optimizer_spec
from paceline.plan.memory import memory_of
from paceline.plan.mesh import Mesh
from paceline.plan.plan import Decision, Plan, Precision
from paceline.plan.precision import choose_precision
from paceline.plan.predict.escalate import escalate
from paceline.plan.roles import other_models, reads_prompts
from paceline.plan.rollout import check_rollout, rollout_decisions
from paceline.plan.shape import ModelShape, scoring, shape_from_config
from paceline.plan.strategy import Chosen, choose_strategy

T = TypeVar("T")


def facts_of(hardware: Hardware, *, world_size: int, num_nodes: int, launcher: str, shape: ModelShape | None) -> Facts:
    """What the config rules may know of machine, job and model."""
    return Facts(
        device=hardware.device,
        device_name=hardware.device_name,
        num_devices=hardware.num_devices,
        bf16=hardware.bf16,
        fp16=hardware.fp16,
        capability=hardware.capability,
        world_size=world_size,
        num_nodes=num_nodes,
        launcher=launcher,
        backends=frozenset(hardware.torch_backends),
        max_position_embeddings=shape.max_position_embeddings or None if shape else None,
        rope_scaling=False if shape else None,  # the shape's positions have it counted in
        num_attention_heads=shape.heads if shape else None,
        num_key_value_heads=shape.kv_heads if shape else None,
        num_layers=shape.layers if shape else None,
    )


def make_plan(
    config: Config,
    hardware: Hardware,
    *,
    world_size: int,
    num_nodes: int = 1,
    launcher: str,
    run_dir: str,
    shape: ModelShape | None = None,
    others: Mapping[str, ModelShape | None] | None = None,
    provenance: Mapping[str, Source] | None = None,
) -> Plan:
    """The plan for ``world_size`` processes on ``num_nodes`` nodes like ``hardware``.

    ``shape`` may be left out when ``model.config`` is given; ``others`` are those of other models, by name; ``provenance`` lets findings name ``file:line``. Raises ConfigError with
    every finding at once: the config rules with what is known now, and what this version cannot start.
    """
    values = config.to_json()
    training, data, model = values["training"], values["data"], values["model"]
    found = check_world(hardware, world_size, num_nodes)
    if shape is None and model.get("config"):
        shape = _attempt(lambda: shape_from_config(model["config"]), found)
    if training["distributed_strategy"] == FASTEST and not found:
        job_of = partial(make_plan, hardware=hardware, world_size=world_size, num_nodes=num_nodes, launcher=launcher, run_dir=run_dir, shape=shape, others=others, provenance=provenance)  # fmt: skip
        return plan_fastest(config, hardware, shape, world_size, num_nodes, job_of)
    if shape is not None and training["algorithm"] == "reward":
        shape = scoring(shape)
    facts = facts_of(hardware, world_size=world_size, num_nodes=num_nodes, launcher=launcher, shape=shape)
    found += check(config, facts, starting=True, provenance=provenance)
    adapter = _attempt(lambda: adapter_of(values.get("lora")), found)
    chosen = _attempt(
        lambda: choose_strategy(
            training["distributed_strategy"],
            training,
            shape,
            hardware,
            world_size,
            lambda by_size: escalate(by_size, values, shape, adapter, hardware, world_size),
        ),
        found,
    )
    optimizer = _attempt(lambda: optimizer_spec(training), found)
    precision = choose_precision(training["mixed_precision"], hardware, model["dtype"])
    engine = None
    if chosen is not None and not any(d.code.startswith("plan.world") for d in found):
        job = Job(_with_sharding(training, chosen), values.get("lora"), hardware, world_size, num_nodes, shape)
        engine = _attempt(lambda: _engine(chosen, job, precision), found)
    if chosen is not None and engine is not None:
        found += check_adapter(adapter, chosen.strategy, engine.mesh, precision.compute, engine.options)
    if engine is not None:
        found += check_rollout(training, engine.batch)
    if errors(found) or chosen is None or optimizer is None or engine is None:
        raise ConfigError(*errors(found))
    strategy, reason = chosen.strategy, chosen.reason
    backend, backend_decision = choose_backend(training["ddp_backend"], hardware, training["ddp_timeout"])
    attention = choose_attention(model["attn_implementation"], hardware, precision, data["packing"])
    reference, models, about_models = other_models(training, adapter)
    plan = Plan(
        algorithm=training["algorithm"],
        strategy=strategy,
        strategy_reason=reason,
        mesh=engine.mesh,
        world_size=world_size,
        num_nodes=num_nodes,
        device=hardware.device,
        backend=backend,
        timeout_seconds=training["ddp_timeout"],
        precision=precision,
        batch=engine.batch,
        seq_len=data["max_length"],
        packing=data["packing"] and not reads_prompts(training["algorithm"]),
        attention=attention.choice,
        recompute=training["gradient_checkpointing"],
        compile=training["torch_compile"],
        optimizer=optimizer,
        decisions=(
            *_main_decisions(hardware, world_size, num_nodes, strategy, reason, engine.batch, precision),
            *engine.decisions,
            backend_decision,
            attention,
            *adapter_decisions(adapter, shape),
            *about_models,
            *rollout_decisions(training, engine.batch),
            *knob_decisions(training, data, hardware, strategy, prompts=reads_prompts(training["algorithm"])),
            *(
                Decision(d.where or d.code, f"warning {d.code}", f"{d.what}; {d.hint}")
                for d in found
                if d.code != "batch.triple"  # the engine's decisions tell the repaired product
            ),
        ),
        config=values,
        config_digest=config.digest(),
        run_dir=run_dir,
        shape=shape,
        launcher=launcher,
        paceline_version=__version__,
        engine=engine.options,
        adapter=adapter,
        reference=reference,
        models={
            role: {**model, "shape": _shape_of(role, model, shape, others or {})} for role, model in models.items()
        },
    )
    return replace(plan, memory=memory_of(plan, hardware))


def _shape_of(
    role: str, model: Mapping[str, Any], own: ModelShape | None, others: Mapping[str, ModelShape | None]
) -> dict[str, Any] | None:
    """JSON of the shape of another model than the policy, under the head that its role has."""
    found = own if model["model"] is None else others.get(model["model"])
    if found is not None and role in ("value", "reward"):
        found = scoring(found)
    return None if found is None else found.to_json()


@dataclass(frozen=True)
class _Engine:
    """What follows from the strategy: mesh, batch, ``Plan.engine``, and what there is to say about them."""

    mesh: Mesh
    batch: BatchSplit
    options: dict[str, Any]
    decisions: tuple[Decision, ...]


def _engine(chosen: Chosen, job: Job, precision: Precision) -> _Engine:
    mesh, about_mesh = resolve_mesh(chosen.strategy, job)
    t = job.training
    asked = t["per_device_train_batch_size"], t["gradient_accumulation_steps"]
    micro, accumulation, from_total = batch_of(t["deepspeed"], *asked, mesh.data_parallel_size)
    batch = split_batch(micro, accumulation, mesh.data_parallel_size)
    options, about = resolve_engine(chosen.strategy, job, mesh, batch, precision)
    said = (Decision("train_batch_size", str(batch.global_batch), from_total),) if from_total else ()
    return _Engine(mesh, batch, options, (*about_mesh, *said, *about))


def _with_sharding(training: dict[str, Any], chosen: Chosen) -> dict[str, Any]:
    return {**training, "fsdp": chosen.sharding} if chosen.sharding else training


def _main_decisions(
    hardware: Hardware,
    world_size: int,
    num_nodes: int,
    strategy: str,
    reason: str,
    batch: BatchSplit,
    precision: Precision,
) -> tuple[Decision, ...]:
    where = f"{world_size} process(es) on {num_nodes} node(s)"
    made = [
        Decision("device", hardware.device, f"{hardware.device_note}; {hardware.device_name}"),
        Decision("training.distributed_strategy", strategy, reason),
        Decision(
            "processes", where, "one a device" if hardware.device == "cuda" else f"{hardware.cpu_count} cores a node"
        ),
        Decision(
            "batch", str(batch), "per_device_train_batch_size × gradient_accumulation_steps × data-parallel ranks"
        ),
        Decision(
            "training.mixed_precision",
            precision.compute,
            f"{precision.reason}; master weights {precision.master}, gradients averaged in {precision.reduce}",
        ),
    ]
    per_node = world_size // num_nodes
    if hardware.device == "cpu" and per_node > hardware.cpu_count:
        note = f"{per_node} processes share {hardware.cpu_count} cores: each is slower than it could be"
        made.append(Decision("cores", "shared", note))
    return tuple(made)


def check_world(hardware: Hardware, world_size: int, num_nodes: int) -> list[Diagnostic]:
    """Findings about the number of processes and nodes."""
    if world_size < 1 or num_nodes < 1:
        return [
            Diagnostic(
                "plan.world_size",
                "processes and nodes are counted from 1 up",
                "--nproc",
                f"{world_size} on {num_nodes} nodes",
                "1 or more",
            )
        ]
    if world_size % num_nodes:
        return [
            Diagnostic(
                "plan.world_nodes",
                "every node starts the same number of processes",
                "--nnodes",
                f"{world_size} processes on {num_nodes} nodes",
                "a multiple",
            )
        ]
    found = []
    per_node = world_size // num_nodes
    if hardware.device == "cuda" and per_node > hardware.num_devices:
        found.append(
            Diagnostic(
                "plan.too_few_devices",
                f"{per_node} processes a node, but {hardware.num_devices} CUDA device(s) are visible",
                "--nproc",
                str(per_node),
                f"--nproc {hardware.num_devices}, or training.use_cpu=true",
            )
        )
    return found


def _attempt(choice: Callable[[], T], found: list[Diagnostic]) -> T | None:
    """The choice, or None with its findings kept, so that all are told at once."""
    try:
        return choice()
    except ConfigError as exc:
        found.extend(exc.diagnostics)
        return None
