"""Make a plan together with the findings of all rules, in one pass, once all facts are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from paceline.config.source import Source
from paceline.core.diagnostics import Diagnostic, errors
from paceline.core.errors import ConfigError
from paceline.core.plugins.tables import CHOOSERS
from paceline.plan.hardware.probe import Hardware
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import Plan
from paceline.plan.planner import attempt, resolved_plan
from paceline.plan.strategies.spec import Job
from paceline.rules import check
from paceline.rules.complete_remedies import complete_remedies
from paceline.rules.rule import Facts


@dataclass(frozen=True)
class PlanAttempt:
    """A plan (None when there are errors), the rules' findings, and further problems from planning."""

    plan: Plan | None
    ruled: tuple[Diagnostic, ...]
    problems: tuple[Diagnostic, ...] = ()


def facts_of(
    hardware: Hardware, *, world_size: int, num_nodes: int, launcher: str, shape: ModelShape | None
) -> Facts:
    """Return the facts that follow from the arguments, without inspecting this machine."""
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
        composite=shape.composite if shape else None,
    )


def try_plan(
    job: Job, *, provenance: Mapping[str, Source] | None = None, facts: Facts | None = None
) -> PlanAttempt:
    """Run the rules and ``resolved_plan``.

    ``facts`` replaces the facts that follow from the other arguments; ``provenance`` lets findings name
    ``file:line``.
    """
    job = replace(job, shape=attempt(job.model_shape, []))  # resolved_plan reports its errors
    known_facts = facts or facts_of(
        job.hardware,
        world_size=job.world_size,
        num_nodes=job.num_nodes,
        launcher=job.launcher,
        shape=job.shape,
    )
    complete = partial(complete_remedies, facts=known_facts, provenance=provenance or {})
    rules = partial(check, facts=known_facts, starting=True, provenance=provenance)
    ruled = tuple(rules(job.config))
    try:
        chooser = CHOOSERS.get(job.training.distributed_strategy)
        if chooser is not None and chooser.searches and not errors(ruled):
            from paceline.plan.layout_search import plan_fastest

            plan = plan_fastest(job, lambda written: resolved_plan(written, ruled=rules(written.config)))
        else:
            plan = resolved_plan(job, ruled=ruled)
    except ConfigError as error:
        codes = {finding.code for finding in errors(ruled)}
        # What a rule has told with its place, the planner need not tell again without one
        further = (d for d in error.diagnostics if d not in ruled and (d.where or d.code not in codes))
        return PlanAttempt(None, ruled, tuple(complete(further, job.config)))
    return PlanAttempt(plan, ruled)


def make_plan(job: Job, *, provenance: Mapping[str, Source] | None = None) -> Plan:
    """Return ``try_plan``'s plan. Raises ConfigError with all errors at once."""
    tried = try_plan(job, provenance=provenance)
    if tried.plan is None:
        raise ConfigError(*errors(tried.ruled), *tried.problems)
    return tried.plan
