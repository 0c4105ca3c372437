"""How many answers a step and a rollout take, and whether that comes out even."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.core.diagnostics import Diagnostic
from paceline.plan.batch import BatchSplit
from paceline.plan.plan import Decision
from paceline.plan.roles import group_size, reads_prompts

_KEY = "training.rollout"


def check_rollout(training: Mapping[str, Any], batch: BatchSplit) -> list[Diagnostic]:
    """Findings where a rollout cannot be cut into whole groups and whole steps."""
    if not reads_prompts(training["algorithm"]):
        return []
    options = training.get("rollout") or {}
    group, pieces = group_size(training), options.get("steps_per_generation")
    if pieces is not None and pieces % batch.accumulation:
        hint = f"steps_per_generation: {max(1, round(pieces / batch.accumulation)) * batch.accumulation}"
        what = "a rollout is cut into whole optimizer steps"
        found = f"steps_per_generation: {pieces}, gradient accumulation {batch.accumulation}"
        return [Diagnostic("rollout.steps", what, f"{_KEY}.steps_per_generation", found, hint)]
    answers = (pieces or batch.accumulation) * batch.micro_batch * batch.data_parallel_size
    if answers % group:
        near = sorted((n for n in range(1, answers + 1) if answers % n == 0), key=lambda n: (abs(n - group), n))[:2]
        what = "answers to one prompt would be cut over two rollouts: batch sizes count answers, and are to hold whole groups"
        found = f"{answers} answers a rollout ({batch}), num_generations: {group}"
        hint = f"num_generations: {' or '.join(map(str, sorted(near)))}, or a per_device_train_batch_size that fits"
        return [Diagnostic("rollout.groups", what, f"{_KEY}.num_generations", found, hint)]
    return []


def rollout_cut(training: Mapping[str, Any], batch: BatchSplit) -> tuple[int, int]:
    """(optimizer steps that one pass over a rollout takes, passes over it)."""
    pieces = (training.get("rollout") or {}).get("steps_per_generation") or batch.accumulation
    key, default = {"grpo": ("num_iterations", 1), "ppo": ("num_ppo_epochs", 4)}[training["algorithm"]]
    return pieces // batch.accumulation, int((training.get(training["algorithm"]) or {}).get(key, default))


def rollout_decisions(training: Mapping[str, Any], batch: BatchSplit) -> tuple[Decision, ...]:
    """What a rollout is, in words."""
    if not reads_prompts(training["algorithm"]):
        return ()
    group = group_size(training)
    windows, passes = rollout_cut(training, batch)
    answers, steps = windows * batch.global_batch, windows * passes
    value = f"{answers // group} prompts × {group} answer{'s' if group > 1 else ''}"
    return (Decision("rollout", value, f"then {steps} optimizer step{'s' if steps > 1 else ''} on it; batch sizes count answers"),)  # fmt: skip
