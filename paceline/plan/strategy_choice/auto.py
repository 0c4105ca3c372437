"""``auto``: start from the size rule's strategy, and try the next while one cannot start or does not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from paceline.core.errors import ConfigError
from paceline.plan.cost.from_plan import predicted_plan
from paceline.plan.cost.search import GIB, Candidate
from paceline.plan.hardware.probe import Hardware
from paceline.plan.plan import Plan
from paceline.plan.size_rule import chain_from
from paceline.plan.strategy_choice.choose import StrategyChoice, startable
from paceline.plan.strategy_choice.what_fits import what_fits


def plan_auto(by_size: StrategyChoice, hardware: Hardware, make: Callable[[StrategyChoice], Plan]) -> Plan:
    """Return the plan of the first strategy, from the size rule's on, that can start and is predicted to fit.

    The config's micro-batch is kept; the plan's reason lists every attempt. Without predictions the first
    strategy that can start is taken. If none fits, the last that can start is kept, with advice. Raises
    ConfigError, with the first strategy's problems, if none can start.
    """
    reasons: list[str] = []
    kept: Plan | None = None
    first: ConfigError | None = None
    tried: set[tuple[str, str | None]] = set()
    for name in chain_from(by_size.strategy):
        # Two of the chain may become the same choice.
        chosen = startable(name, by_size, hardware)
        if (chosen.strategy, chosen.sharding) in tried:
            continue
        tried.add((chosen.strategy, chosen.sharding))
        label = f"{chosen.strategy} ({chosen.sharding})" if chosen.sharding else chosen.strategy
        try:
            plan = make(replace(chosen, reason="; ".join([chosen.reason, *reasons])))
        except ConfigError as error:
            first = first or error
            reasons.append(
                f"{label} cannot start: {error.diagnostics[0].what} ({error.diagnostics[0].found})"
            )
            continue
        # Take the first that fits, or whose memory cannot be predicted.
        found = predicted_plan(plan, hardware)
        if found is None or found.safe:
            fits = [] if found is None else [f"{label} fits: {_sizes(found)}"]
            return with_reason(plan, "; ".join([plan.strategy_reason, *fits]))
        reasons.append(f"{label} does not fit: {found.binding}")
        kept = plan
    # Nothing fits: keep the last that can start, if any can.
    if kept is None:
        assert first is not None
        raise first
    less = what_fits(kept, hardware)
    last = f"keeping {kept.strategy}; " + ("; or ".join(less) or "none of the searched layouts fits")
    return with_reason(kept, "; ".join([by_size.reason, *reasons, last]))


def _sizes(found: Candidate) -> str:
    return f"{found.bytes / GIB:.0f} GiB of {found.card / GIB:.0f}"


def with_reason(plan: Plan, reason: str) -> Plan:
    """Return ``plan`` with another reason for its strategy, in both places that hold it."""
    decisions = (
        replace(d, reason=reason) if d.subject == "training.distributed_strategy" else d
        for d in plan.decisions
    )
    return replace(plan, strategy_reason=reason, decisions=tuple(decisions))
