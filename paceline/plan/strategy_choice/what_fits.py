"""Find layouts that would fit, for a refused plan or a run out of memory, by the planner's search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from paceline.core.errors import ConfigError
from paceline.plan.cost.from_plan import (
    PROCESS,
    cluster_of_cpu,
    cluster_of_hardware,
    planned_candidate,
    search_spec_of,
)
from paceline.plan.cost.report import settings, settings_text
from paceline.plan.cost.search import GIB, Candidate, search
from paceline.plan.hardware.probe import Hardware
from paceline.plan.plan import Plan
from paceline.plan.strategy_choice.fastest import may_be
from paceline.plan.workload.step_spec import StepSpec

MANY_CARDS = 4096  # with more cards the search takes too long for a hint


def what_fits(plan: Plan, hardware: Hardware, *, ran_out: bool = False) -> list[str]:
    """Return up to two remedies as YAML with predicted memory.

    One keeps the layout with smaller micro-batches or recomputation, one takes another strategy. ``ran_out``:
    the plan's own layout ran out of memory, so predictions are scaled up to at least that. Empty if nothing
    fits or can be predicted. Never the plan's own layout.
    """
    # Predict the plan itself and every layout of the search.
    per_node = max(1, plan.world_size // plan.num_nodes)
    on_cpu = hardware.device == "cpu"
    cluster = cluster_of_cpu(hardware, per_node) if on_cpu else cluster_of_hardware(hardware, plan.num_nodes)
    if cluster is None or plan.world_size > MANY_CARDS:
        return []
    spec = search_spec_of(plan, replace(cluster, cards=plan.world_size))
    own = planned_candidate(plan, spec) if spec else None
    if spec is None or own is None:
        return []
    resident = PROCESS if on_cpu else 0.0
    factor = max(1.0, own.card / (own.bytes + resident)) if ran_out else 1.0
    try:
        found = search(spec)
    except ConfigError:
        return []
    # Fitting layouts: of the same strategy only if they need less; then the nearest of each kind.
    fits = [c for c in found if c.safe and factor * (c.bytes + resident) <= c.limit and may_be(c, hardware)]
    fits = [c for c in fits if not (_layout(c.work) == _layout(own.work) and not _gentler(c.work, own.work))]
    near = [c for c in fits if _layout(c.work) == _layout(own.work)]
    other = [c for c in fits if _layout(c.work) != _layout(own.work)]
    return [_sentence(min(some, key=_changes(own)), factor, resident) for some in (near, other) if some]


def _layout(work: StepSpec) -> tuple[int, int, int, int, int, str, float]:
    """Return what identifies a strategy's layout: everything but micro-batch and recomputation."""
    shared = work.sharers if work.zero else 1
    return work.zero, shared, work.tp, work.pp, work.cp, work.offload, work.zero and work.storage.weight


def _gentler(work: StepSpec, own: StepSpec) -> bool:
    """Whether a layout of the same strategy holds fewer activations than the plan's own."""
    if work.micro_batch > own.micro_batch or (own.recompute == "full" and work.recompute == "none"):
        return False
    return work.micro_batch < own.micro_batch or work.recompute != own.recompute


def _changes(own: Candidate) -> Callable[[Candidate], tuple[bool, bool, float]]:
    """Return a sort key: fewest changes first (same tp, pp, cp; then no offload), then fastest."""
    axes = own.work.tp, own.work.pp, own.work.cp
    return lambda c: ((c.work.tp, c.work.pp, c.work.cp) != axes, c.work.offload != "none", c.step)


def _sentence(found: Candidate, factor: float, resident: float) -> str:
    need, room = factor * (found.bytes + resident) / GIB, found.card / GIB
    return f"{found.strategy} fits, {need:.1f} of {room:.1f} GiB: {settings_text(settings(found))}"
