"""Compare a simulation with the closed form; ``paceline.simulate`` (torch) runs the simulation itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypedDict

from paceline.core.json_types import JsonObject
from paceline.core.units import human_bytes
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.cost.coefficients import memory_coefficients
from paceline.plan.cost.memory.peak import head_kept, kept_gathered, saved_bytes, score_bytes
from paceline.plan.cost.search import Candidate
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import Simulated, strategy_spec

APART = 0.10  # larger differences are reported


@dataclass(frozen=True)
class Compared:
    """One quantity: simulated (None if torch cannot simulate it) and closed form (None if there is none)."""

    what: str
    simulated: float | None
    closed: float | None
    unit: str = "bytes"

    @property
    def apart(self) -> float | None:
        """Closed form / simulated - 1."""
        if self.simulated is None or self.closed is None:
            return None
        return self.closed / self.simulated - 1 if self.simulated else float(self.closed != 0)

    def to_json(self) -> JsonObject:
        """Plain JSON types."""
        return asdict(self) | {"apart": self.apart}


def why_not(plan: Plan) -> str:
    """Return why torch cannot simulate this plan at all; empty if it can."""
    mesh = plan.mesh
    spec = strategy_spec(plan.strategy)
    if spec.simulated is Simulated.NOTHING:
        return spec.not_simulated or f"it is not known whether '{plan.strategy}' runs without real tensors"
    if mesh.tp > 1:
        return "torch fails on tensor-parallel weights under fake tensors (aten.nonzero has no size there)"
    if mesh.cp > 1:
        return "blocks of a sequence are exchanged depending on values that a simulation does not have"
    if plan.adapter is not None and plan.adapter.quantization:
        return "bitsandbytes can quantise real weights only"
    return ""


def partly(plan: Plan) -> str:
    """Return the part of the plan that is not simulated; empty if there is none."""
    images = "images: the text is simulated, its tower and projector are in the closed form alone"
    parts = (strategy_spec(plan.strategy).not_simulated, images if plan.vision else "")
    return "; ".join(part for part in parts if part)


class Simulation(TypedDict, total=False):
    """The answer of ``paceline.simulate``: bytes, and collectives as kind → [count, bytes]; or the reason why
    there is none."""

    states: Mapping[str, int]
    activations: float
    head: float
    gathered: float
    peak: float
    collectives: Mapping[str, Sequence[int]]
    failed: str
    missing: str


def compare(plan: Plan, candidate: Candidate, measured: Simulation) -> list[Compared]:
    """Compare the result of ``paceline.simulate`` with the closed form of the same plan."""
    peak = candidate.peak
    states = measured.get("states") or {}
    exact = plan.memory.largest if plan.memory and plan.mesh.pp == 1 else None
    there = exact is not None and candidate.work.offload != "all"
    gradients = exact.gradients if exact is not None and there else peak.gradients
    counters = plan.memory.largest.counters if plan.memory and plan.memory.largest else 0
    closed_states = (peak.parameters, gradients, peak.optimizer - counters)
    rows = [
        Compared(name, states.get(name), value)
        for name, value in zip(("parameters", "gradients", "optimizer"), closed_states, strict=True)
    ]
    rows.append(_activations(plan, candidate, measured.get("activations")))
    chunked = algorithm_spec(plan.algorithm).sums_tokens
    head = head_kept(candidate.work) if chunked and peak.logits else None
    rows.append(Compared("head, for its backward", measured.get("head"), head))
    if gathered := measured.get("gathered"):
        rows.append(Compared("gathered for the backward", gathered, _gathered(plan, candidate)))
    if "states" in measured and plan.mesh.pp == 1:
        # A simulation has neither an allocator nor a device context.
        live = peak.total - peak.fragments - peak.overhead
        rows.append(Compared("live tensors at the peak", measured.get("peak"), live))
    closed = strategy_spec(plan.strategy).collectives(plan)
    sent = measured.get("collectives") or {}
    for kind in sorted({*closed, *sent}):
        times, count = sent.get(kind, (None, None))
        expected = closed.get(kind, (None, None))
        rows.append(Compared(f"{kind}s per step", times, expected[0], "times"))
        rows.append(Compared(f"{kind}, bytes per step", count, expected[1]))
    return rows


def _gathered(plan: Plan, candidate: Candidate) -> float | None:
    work, how = candidate.work, plan.engine.sharded
    if how is None or how.wrap.unusual:
        return None
    [stage] = work.stages
    return kept_gathered(work, work.stage_parameters(stage), stage)


def _activations(plan: Plan, candidate: Candidate, measured: float | None) -> Compared:
    """The module is simulated on a CPU's path, which keeps all scores of attention with capping, dropout or
    sinks. Return activations without these scores if the plan's device has a kernel that keeps none.
    """
    work, peak = candidate.work, candidate.peak
    shape = work.shape
    closed = peak.attention + peak.mlp + peak.checkpoints
    if work.pp == 1:
        closed = saved_bytes(work, memory_coefficients(work.system))
    if (
        measured is None
        or work.scores
        or plan.recompute
        or not (shape.softcap or shape.sinks or shape.dropout)
    ):
        return Compared("activations", measured, closed)
    return Compared("activations, without scores", measured - score_bytes(work) * shape.layers, closed)


def table(rows: Sequence[Compared], reason: str) -> str:
    """Return the comparison as text of at most 100 columns."""
    lines = [f"  {'simulated against closed form':<30} {'simulated':>14} {'closed form':>14} {'apart':>8}"]
    for row in rows:
        shown = [_shown(value, row.unit) for value in (row.simulated, row.closed)]
        apart = "" if row.apart is None else f"{row.apart:+.1%}"
        lines.append(f"  {row.what:<30} {shown[0]:>14} {shown[1]:>14} {apart:>8}")
    for row in rows:
        if row.apart is not None and abs(row.apart) > APART:
            lines.append(
                f"DISAGREEMENT: {row.what}: the closed form is {row.apart:+.0%} off; trust the simulation"
            )
    if reason:
        lines.append(f"not simulated: {reason}")
    return "\n".join(lines) + "\n"


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if unit == "times" else human_bytes(int(value))
