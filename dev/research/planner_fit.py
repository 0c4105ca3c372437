"""Fitting the pooled coefficients: a few, each with a prior from a source and bounds of its meaning.

A descent in logarithms on a robust loss, in which every publisher weighs the same, plus the distance from the
priors. A cluster with hundreds of rows gets coefficients of its own fabric on top (``fit_fabric``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from planner_rows import Row, in_sweep, publisher

from paceline.plan.cost.coefficients import MemoryCoefficients, SpeedCoefficients
from paceline.plan.cost.memory.peak import frozen_bytes, peak_of, worst_peak
from paceline.plan.cost.memory.terms import Peak
from paceline.plan.cost.step_time import speed_of

Coefficients = dict[str, float]
Sets = dict[str, Coefficients]
DEFAULT, SWEEP = "default", "nanotron"
ROUNDS = 6
PULL = 0.01  # weight of the distance from the priors
CAP = 0.7  # a larger error in logarithms counts as this


@dataclass(frozen=True)
class Prior:
    """Where a coefficient starts, how far it may go, and how far (in logarithms) is one deviation."""

    value: float
    low: float
    high: float
    deviation: float
    source: str


SPEED: dict[str, Prior] = {
    "kernel": Prior(0.85, 0.6, 1.1, 0.12, "share of the fastest matmul (mamf) in a step; ml-engineering"),
    "width": Prior(60, 10, 400, 0.7, "tiles of 128 columns, half filled"),
    "rows": Prior(100, 20, 1500, 1.0, "tiles of 128 rows, half filled"),
    "attention": Prior(0.9, 0.4, 1.2, 0.3, "forward with backward, of the share in the papers' figures"),
    "elementwise": Prior(20, 3, 30, 0.5, "about 10 elementwise passes over a layer's widths, 2 bytes each"),
    "compiled_time": Prior(0.5, 0.2, 1, 0.5, "fusion halves the passes; torchtitan 2024-12 +16 % a step"),
    "launch": Prior(0.8, 0.2, 4, 0.5, "150 kernels a layer at 5 µs (tests/unit/device counts 42 forward)"),
    "loss_moves": Prior(10, 4, 20, 0.5, "bytes a logit: 2 + 4 + 4"),
    "low_precision": Prior(1.5, 1.05, 1.95, 0.5, "fp8 at twice the peak, less scaling"),
    "four_bits": Prior(1.4, 1.05, 1.95, 0.5, "fp4 at twice the fp8 peak, less scaling"),
    "selective_passes": Prior(0.35, 0.1, 0.6, 0.5, "torchtitan's op policy recomputes half of the matmuls"),
    "tensor_exposed": Prior(
        0.9, 0.2, 1.2, 0.5, "nothing overlaps without asynchronous tp (torchtitan: +10 %)"
    ),
    "link_inside": Prior(0.8, 0.5, 1.2, 0.15, "367 of 450 GB/s on 8 H200, nccl-tests; ml-engineering"),
    "link_outside": Prior(0.8, 0.4, 1.0, 0.2, "nccl-tests on InfiniBand"),
    "link_fall": Prior(0.05, 0.005, 0.4, 1.0, "congestion: bandwidth by this power of the nodes"),
    "hop": Prior(1.0, 0.3, 60, 0.7, "NCCL's own 14 µs a network step (src/graph/tuning.cc)"),
    "overlap": Prior(0.8, 0.3, 1.0, 0.2, "what may hide communication; Galvatron's slowdown of 1.13"),
    "zero_overlap": Prior(0.5, 0.05, 1.0, 0.7, "the same under ZeRO 1 and 2"),
    "never_hidden": Prior(0.1, 0.02, 0.6, 0.8, "the last bucket of about ten"),
    "send": Prior(0.05, 0.01, 3, 1.2, "milliseconds: a send's start and the wait for its partner"),
    "step_fixed": Prior(0.01, 0.001, 0.05, 1.0, "seconds"),
}
#: cited or structural, not fitted
FIXED_SPEED: Coefficients = {
    "tensor_pipeline": 0.0,
    "tensor_nodes": 0.0,
    "overlap_slow": 0.03,
    "message": 400.0,  # MiB; buckets of 25 (torch) to 1,000 (DeepSpeed); chosen by the sweep to 128 cards
    "optimizer_moves": 30.0,  # AdamW reads 16 bytes a parameter and writes 14
}
#: of one cluster: latency, bandwidth and its fall, and what tp in a pipeline waits there
FABRIC: dict[str, Prior] = {
    "hop": Prior(25.0, 0.3, 60, 0.7, "its plotted all-gathers: 250 GB/s on a node, 11 on 64"),
    "link_fall": SPEED["link_fall"],
    "link_outside": SPEED["link_outside"],
    "tensor_pipeline": Prior(2.9, 0.5, 6, 2.0, "milliseconds a rank of the group and layer"),
    "tensor_nodes": Prior(0.01, 0.001, 0.3, 2.0, "more a further node"),
    "zero_overlap": Prior(0.36, 0.02, 1.0, 1.0, "its optimizer gathers weights after its step"),
}
MEMORY: dict[str, Prior] = {
    "logits": Prior(16, 8, 20, 0.25, "2 + 4 + 4 + 4 + 2 bytes"),
    "fragments": Prior(0.06, 0.005, 0.25, 0.7, "reserved over allocated 1.01 to 1.05, nanotron's logs"),
    "overhead": Prior(1.4, 0.3, 2.0, 0.4, "context 0.5 to 0.9 GiB, cuBLAS; ml-engineering"),
    "states_slack": Prior(0.06, 0.005, 0.2, 0.7, "a card's margin of fragmentation, about 5 %"),
    "safety": Prior(0.02, 0.001, 0.15, 1.5, "what is not modelled"),
}


def predicted_memory(row: Row, sets: Mapping[str, Coefficients]) -> float:
    """Bytes of the rank whose memory the source publishes: the sweep's is the first stage's."""
    c = MemoryCoefficients(**{**sets[DEFAULT], **sets.get(row.system, {})})
    found = as_printed(row, peak_of(row.work, c, 0) if in_sweep(row) else worst_peak(row.work, c)[1])
    if row.whole_at_start:
        whole = frozen_bytes(row.work, row.work.shape.num_parameters) or row.work.storage.weight * (
            row.work.shape.num_parameters
        )
        found = max(found, whole * (1 + 1 / row.work.sharers))
    return found


def as_printed(row: Row, peak: Peak) -> float:
    """What a row's program prints of a peak: all of the device, or without the context."""
    return peak.total - (0.0 if row.metric == "device" else peak.overhead)


def predicted_speed(row: Row, sets: Mapping[str, Coefficients]) -> float:
    """Tokens a second a rank."""
    c = SpeedCoefficients(**{**sets[DEFAULT], **sets.get(row.system, {})})
    return speed_of(row.work, c).tokens_per_second_per_rank


def speed_errors(rows: Sequence[Row]) -> Callable[[Coefficients], list[float]]:
    """Return the errors' logarithms as a function of the coefficients."""
    measured = [(row, math.log(row.speed)) for row in rows if row.speed]
    return lambda c: [math.log(predicted_speed(row, {DEFAULT: c})) - log for row, log in measured]


def memory_errors(rows: Sequence[Row]) -> Callable[[Coefficients], list[float]]:
    """The same for memory; an underestimate, which costs a run, counts twice."""
    measured = [(row, math.log(row.memory)) for row in rows if row.memory]

    def errors(c: Coefficients) -> list[float]:
        found = [math.log(predicted_memory(row, {DEFAULT: c})) - log for row, log in measured]
        return [2 * e if e < 0 else e for e in found]

    return errors


def fit_speed(rows: Sequence[Row]) -> Coefficients:
    """The pooled speed coefficients of ``rows``."""
    start = FIXED_SPEED | {name: prior.value for name, prior in SPEED.items()}
    rows = [row for row in rows if row.speed]
    return descend(start, SPEED, loss_of(rows, speed_errors(rows), SPEED))


def fit_fabric(rows: Sequence[Row], pooled: Coefficients) -> Coefficients:
    """One cluster's own coefficients, the others as ``pooled``; fitted with little pull to the priors."""
    start = pooled | {name: prior.value for name, prior in FABRIC.items()}
    rows = [row for row in rows if row.speed]
    found = descend(start, FABRIC, loss_of(rows, speed_errors(rows), FABRIC, pull=PULL / 20))
    return {name: found[name] for name in FABRIC}


def fit_memory(rows: Sequence[Row], start: Coefficients) -> Coefficients:
    """The pooled memory coefficients of ``rows``; what is not in ``MEMORY`` stays as in ``start``."""
    rows = [row for row in rows if row.memory]
    begun = start | {name: prior.value for name, prior in MEMORY.items()}
    return descend(begun, MEMORY, loss_of(rows, memory_errors(rows), MEMORY, pull=PULL / 3))


def loss_of(
    rows: Sequence[Row],
    errors: Callable[[Coefficients], list[float]],
    priors: Mapping[str, Prior],
    pull: float = PULL,
) -> Callable[[Coefficients], float]:
    """Mean and half of the median error, each publisher weighing the same, and the pull of the priors."""
    count = Counter(publisher(row) for row in rows)
    weight = [1 / max(3, count[publisher(row)]) for row in rows]

    def loss(c: Coefficients) -> float:
        sizes = [abs(e) for e in errors(c)]
        mean = sum(w * min(e, CAP) for e, w in zip(sizes, weight, strict=True)) / sum(weight)
        away = sum((math.log(c[name] / p.value) / p.deviation) ** 2 for name, p in priors.items())
        return mean + weighted(sizes, weight, 0.5) / 2 + pull * away

    return loss


def descend(
    start: Coefficients, priors: Mapping[str, Prior], loss: Callable[[Coefficients], float]
) -> Coefficients:
    """One coefficient after the other, up or down as long as it helps; the step shrinks every round. None
    leaves its bounds.
    """
    best, found = loss(start), dict(start)
    step = {name: 0.4 * prior.deviation for name, prior in priors.items()}
    for _ in range(ROUNDS):
        for name, prior in priors.items():
            for sign in (1, -1):
                while True:
                    tried = {**found, name: found[name] * math.exp(sign * step[name])}
                    if not prior.low <= tried[name] <= prior.high:
                        break
                    value = loss(tried)
                    if value >= best - 1e-6:
                        break
                    best, found = value, tried
        step = {name: size / 1.7 for name, size in step.items()}
    return found


def weighted(values: Sequence[float], weight: Sequence[float], part: float) -> float:
    """Return the smallest value with ``part`` of the weight at or below it; not a number of none."""
    if not values:
        return math.nan
    order = sorted(zip(values, weight, strict=True))
    limit, seen = part * sum(weight), 0.0
    for value, each in order:
        seen += each
        if seen >= limit - 1e-9:
            return value
    return order[-1][0]


def quantile(values: Iterable[float], part: float) -> float:
    """Linear between the two nearest."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    at = part * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)
