"""A plan with everything that rules say of the job: one pass of them, when all facts are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from paceline.config.schema import Config
from paceline.config.source import Source
from paceline.core.diagnostics import Diagnostic, errors
from paceline.core.errors import ConfigError
from paceline.core.tables import CHOOSERS
from paceline.plan.choose import resolved_plan
from paceline.plan.fastest import plan_fastest
from paceline.plan.hardware.probe import Hardware
from paceline.plan.model.read_shape import ModelShape, trained_shape
from paceline.plan.plan import Plan
from paceline.plan.resolve import attempt
from paceline.rules import check
from paceline.rules.base import Facts


@dataclass(frozen=True)
class Tried:
    """``plan``: None where something stands against it. ``ruled``: what rules have found; ``problems``: what planning has, beside that."""

    plan: Plan | None
    ruled: tuple[Diagnostic, ...]
    problems: tuple[Diagnostic, ...] = ()


def facts_of(hardware: Hardware, *, world_size: int, num_nodes: int, launcher: str, shape: ModelShape | None) -> Facts:
    """What rules may know of machine, job and model, without looking at this one."""
    return Facts(
        device=hardware.device,
        device_name=hardware.device_name,
        bf16=hardware.bf16,
        fp16=hardware.fp16,
        world_size=world_size,
        num_nodes=num_nodes,
        launcher=launcher,
        backends=frozenset(hardware.torch_backends),
        max_position_embeddings=shape.max_position_embeddings or None if shape else None,
        num_attention_heads=shape.heads if shape else None,
        num_key_value_heads=shape.kv_heads if shape else None,
    )


def try_plan(
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
    needs_room: bool = True,
    facts: Facts | None = None,
) -> Tried:
    """``resolved_plan`` and the rules; ``facts`` where more is known than these arguments tell, ``provenance`` lets findings name ``file:line``."""
    if shape is None and config.model.config:
        given = config.model.config
        shape = attempt(lambda: trained_shape(given, "model.config"), [])  # resolved_plan tells what is wrong with it
    known = facts or facts_of(hardware, world_size=world_size, num_nodes=num_nodes, launcher=launcher, shape=shape)
    rules = partial(check, facts=known, starting=True, provenance=provenance)
    job = partial(
        resolved_plan, hardware=hardware, world_size=world_size, num_nodes=num_nodes, launcher=launcher, run_dir=run_dir,
        shape=shape, others=others, needs_room=needs_room,
    )  # fmt: skip
    ruled = tuple(rules(config))
    try:
        chooser = CHOOSERS.get(config.training.distributed_strategy)
        if chooser is not None and chooser.searches and not errors(ruled):
            plan = plan_fastest(config, hardware, shape, world_size, num_nodes, lambda c: job(c, ruled=rules(c)))
        else:
            plan = job(config, ruled=ruled)
    except ConfigError as error:
        return Tried(None, ruled, tuple(d for d in error.diagnostics if d not in ruled))
    return Tried(plan, ruled)


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
    needs_room: bool = True,
) -> Plan:
    """``try_plan``'s plan. Raises ConfigError with every finding at once."""
    tried = try_plan(
        config, hardware, world_size=world_size, num_nodes=num_nodes, launcher=launcher, run_dir=run_dir, shape=shape,
        others=others, provenance=provenance, needs_room=needs_room,
    )  # fmt: skip
    if tried.plan is None:
        raise ConfigError(*errors(tried.ruled), *tried.problems)
    return tried.plan
