"""What a simulation is asked and how its answer stands beside the closed form. The simulation itself is ``paceline.simulate`` (torch)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paceline.core.units import human_bytes
from paceline.plan.pieces import Piece, pieces_of
from paceline.plan.plan import Plan
from paceline.plan.predict.peak import LOGIT_CHUNK
from paceline.plan.predict.search import Candidate

_LAYER = re.compile(r"\.(layers|h)\.\d+\.")
APART = 0.10  # a larger difference is told
ENGINES = "DeepSpeed's engine reads real memory: its states and what it sends stand in closed form"
REDUCER = "DDP's reducer reads real memory: what it sends stands in closed form"


@dataclass(frozen=True)
class Compared:
    """One quantity: simulated (None where torch cannot), and in closed form (None where there is none)."""

    what: str
    simulated: float | None
    closed: float | None
    unit: str = "bytes"

    @property
    def apart(self) -> float | None:
        """Closed form over simulated, minus one."""
        if self.simulated is None or self.closed is None:
            return None
        return self.closed / self.simulated - 1 if self.simulated else float(self.closed != 0)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self) | {"apart": self.apart}


def why_not(plan: Plan) -> str:
    """Why torch cannot simulate this plan at all; empty where it can."""
    mesh = plan.mesh
    if ":" in plan.strategy or plan.strategy == "data_parallel":
        return f"'{plan.strategy}' is not known to run without real tensors"
    if mesh.pp > 1:
        return "a pipeline's schedule needs the other stages' answers"
    if mesh.tp > 1 or int(plan.engine.get("autotp_size", 1)) > 1:
        return "torch fails on tensor-parallel weights under fake tensors (aten.nonzero has no size there)"
    if mesh.cp > 1:
        return "blocks of a sequence are exchanged by numbers that a simulation does not have"
    if plan.adapter is not None and plan.adapter.get("quantization"):
        return "bitsandbytes packs real weights only"
    return ""


def partly(plan: Plan) -> str:
    """What of it torch cannot simulate; empty where nothing is left out."""
    if "zero_stage" in plan.engine:
        return ENGINES
    return REDUCER if plan.strategy == "ddp" and plan.world_size > 1 else ""


def collectives(plan: Plan) -> dict[str, tuple[int, int]]:
    """Of one optimizer step under ``fsdp`` without tensor parallelism: kind -> (how many, bytes of the whole tensors).

    Every layer is a unit, what is left (embedding, last norm, head) another that stays gathered from forward to backward. Gradients are
    scattered after every micro-batch, or once where whole ones are small (``whole_gradient_bytes``).
    """
    shape, m = plan.shape, plan.batch.accumulation
    pieces = pieces_of(shape, plan.adapter, 4) if shape is not None else None
    if plan.strategy != "fsdp" or shape is None or pieces is None or plan.mesh.dp_shard == 1:
        return {}
    weight = 2 if plan.precision.compute in ("bfloat16", "float16") else 4
    reduce = 4 if plan.precision.reduce == "float32" else 2
    ranks = plan.mesh.dp_shard
    in_layers = sum(_padded(p, ranks) for p in pieces if _LAYER.search(p.name))
    outside = sum(_padded(p, ranks) for p in pieces) - in_layers
    trained = sum(p.numel for p in pieces if p.trained)
    scattered = sum(_padded(p, ranks) for p in pieces if p.trained)
    kept = plan.engine.get("sharding") in ("shard_grad_op", "no_shard", "hybrid_shard_zero2")
    once = 4 * trained <= int(plan.engine.get("whole_gradient_bytes") or 2**30)
    passes = 1 if kept else 2
    gathers = (passes * shape.layers + 1, weight * (passes * in_layers + outside))
    scatters = 1 if once else m
    found = {"all-gather": ((1 if kept and once else m) * gathers[0], (1 if kept and once else m) * gathers[1])}
    if plan.adapter is None:
        found["reduce-scatter"] = (scatters * (shape.layers + 1), scatters * reduce * scattered)
        if plan.mesh.dp_replicate > 1:
            found["all-reduce"] = (shape.layers + 1, reduce * scattered // ranks)
    return found


def _padded(piece: Piece, ranks: int) -> int:
    """Numbers of a tensor whose rows are shared out evenly, empty ones added."""
    return -(-piece.shape[0] // ranks) * ranks * (piece.numel // piece.shape[0])


def compare(plan: Plan, candidate: Candidate, measured: Mapping[str, Any]) -> list[Compared]:
    """``measured`` is the answer of ``paceline.simulate``, ``candidate`` the closed form of the same plan."""
    peak = candidate.peak
    states: Mapping[str, int] = measured.get("states") or {}
    rows = [Compared(name, states.get(name), getattr(peak, name)) for name in ("parameters", "gradients", "optimizer")]
    counters = ((plan.memory or {}).get("largest") or {}).get("counters", 0)
    rows[2] = Compared("optimizer", states.get("optimizer"), peak.optimizer - counters)
    rows.append(Compared("activations", measured.get("activations"), peak.attention + peak.mlp + peak.checkpoints))
    head = peak.logits - 3.0 * LOGIT_CHUNK if plan.algorithm == "sft" and peak.logits else None
    rows.append(Compared("head, for its backward", measured.get("head"), head))
    closed = collectives(plan)
    sent: Mapping[str, Sequence[int]] = measured.get("collectives") or {}
    for kind in sorted({*closed, *sent}):
        times, count = sent.get(kind, (None, None))
        expected = closed.get(kind, (None, None))
        rows.append(Compared(f"{kind}s a step", times, expected[0], "times"))
        rows.append(Compared(f"{kind}, bytes a step", count, expected[1]))
    return rows


def table(rows: Sequence[Compared], reason: str) -> str:
    """For a person, at most 100 columns."""
    lines = [f"  {'simulated against closed form':<30} {'simulated':>14} {'closed form':>14} {'apart':>8}"]
    for row in rows:
        shown = [_shown(value, row.unit) for value in (row.simulated, row.closed)]
        apart = "" if row.apart is None else f"{row.apart:+.1%}"
        lines.append(f"  {row.what:<30} {shown[0]:>14} {shown[1]:>14} {apart:>8}")
    for row in rows:
        if row.apart is not None and abs(row.apart) > APART:
            lines.append(f"DISAGREEMENT: {row.what}: the closed form is {row.apart:+.0%} off; trust the simulation")
    if reason:
        lines.append(f"not simulated: {reason}")
    return "\n".join(lines) + "\n"


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if unit == "times" else human_bytes(int(value))
