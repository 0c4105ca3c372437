"""Fitting the planner's coefficients: a coordinate descent on a robust loss. Few coefficients, positive,
each with a meaning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from planner_rows import Row

from paceline.plan.cost.coefficients import MemoryCoefficients, SpeedCoefficients
from paceline.plan.cost.memory.peak import peak_of, worst_peak
from paceline.plan.cost.step_time import speed_of

Coefficients = dict[str, float]
Sets = dict[str, Coefficients]
TOO_LOW, MOST_SAFETY = 0.038, 0.015
UNDER_ADAPTER = 3.0  # … of a small table too, where a fold without its largest model is left with few rows
UNDER = 6.0  # an underestimate of memory costs a run, an overestimate some speed
# Where the fit starts: structure (norm's two saved tensors, four inner ones of SwiGLU, 2 + 4 + 4 bytes a
# logit) and plain guesses.
MEMORY_START: Coefficients = {
    "norm": 6.0,
    "query": 6.0,
    "keys": 6.0,
    "gated": 4.0,
    "compiled": 0.85,
    "frozen_attention": 0.8,
    "frozen_mlp": 0.8,
    "logits": 11.0,
    "fused_logits": 0.5,
    "gathered": 2.0,
    "gathered_ends": 40.0,
    "gathered_pipeline": 3.0,
    "root_unit": 1.0,
    "bucket": 5e8,
    "replica": 0.6,
    "fragments": 0.02,
    "states_slack": 0.15,
    "overhead": 0.3,
    "communicators": 0.3,
    "checkpoint": 1.0,
    "segments": 0.2,
    "safety": 0.0,
}
SPEED_START: Coefficients = {
    "kernel": 0.75,
    "width": 60.0,
    "rows": 100.0,
    "attention": 0.45,
    "elementwise": 20.0,
    "compiled_time": 0.8,
    "launch": 4.0,
    "loss_moves": 10.0,
    "low_precision": 1.4,
    "four_bits": 1.3,
    "selective_passes": 0.15,
    "tensor_exposed": 0.6,
    "tensor_hidden": 1.2,
    "tensor_pipeline": 0.0,
    "tensor_nodes": 0.0,
    "link_inside": 0.9,
    "link_outside": 0.7,
    "link_fall": 0.3,
    "hop": 20.0,
    "overlap": 0.6,
    "zero_overlap": 0.1,
    "overlap_slow": 0.03,
    "never_hidden": 0.3,
    "reduce_bytes": 4.0,
    "send": 1.0,
    "optimizer_moves": 60.0,
    "step_fixed": 0.02,
}
# What each system's rows may move; a system without rows of a kind keeps the default's.
MEMORY_MOVES: dict[str, tuple[str, ...]] = {
    "nanotron": (
        "norm",
        "gated",
        "logits",
        "gathered",
        "gathered_ends",
        "gathered_pipeline",
        "replica",
        "fragments",
        "states_slack",
        "overhead",
        "communicators",
        "segments",
    ),
    "default": ("logits", "root_unit", "overhead", "compiled", "fragments"),
    "litgpt": ("norm", "logits", "frozen_attention", "frozen_mlp", "overhead", "states_slack"),
    "titan": ("logits", "root_unit", "overhead", "compiled"),
    "foundry": ("norm", "gated", "logits", "states_slack", "fragments"),
    "megatron": ("norm", "gated", "logits", "states_slack", "gathered"),
    "internevo": ("norm", "gated", "logits", "states_slack"),
    "qwen-int4": ("logits", "checkpoint", "overhead"),
    "qwen": ("logits", "checkpoint", "overhead", "states_slack"),
    "swift": ("logits", "checkpoint", "overhead", "states_slack"),
    "torchtune": ("checkpoint", "overhead", "states_slack"),
}
SPEED_MOVES: dict[str, tuple[str, ...]] = {
    "nanotron": (
        "kernel",
        "width",
        "rows",
        "attention",
        "elementwise",
        "launch",
        "loss_moves",
        "tensor_exposed",
        "tensor_hidden",
        "tensor_pipeline",
        "tensor_nodes",
        "link_inside",
        "link_outside",
        "link_fall",
        "hop",
        "overlap",
        "zero_overlap",
        "never_hidden",
        "send",
        "optimizer_moves",
        "step_fixed",
    ),
    "default": (
        "kernel",
        "elementwise",
        "attention",
        "compiled_time",
        "low_precision",
        "selective_passes",
        "overlap",
        "link_outside",
    ),
    "titan": ("kernel", "elementwise", "attention", "compiled_time", "low_precision", "selective_passes"),
    "internevo": ("kernel", "elementwise", "attention", "link_outside", "link_fall", "zero_overlap"),
    "foundry": ("kernel", "elementwise", "attention", "low_precision", "overlap", "rows"),
    "megatron": ("kernel", "elementwise", "attention", "low_precision", "four_bits", "send", "rows"),
}
STARTED_FROM_NANOTRON = (
    "link_fall",
    "hop",
    "tensor_exposed",
    "tensor_hidden",
    "link_inside",
    "never_hidden",
    "send",
    "loss_moves",
    "launch",
)
# No coefficient leaves what it can mean: shares of a peak or of a time are at most 1, latencies at most what
# was ever measured.
LIMITS = {
    "kernel": 1.2,
    "attention": 0.8,
    "compiled_time": 1.0,
    "compiled": 1.0,
    "overlap": 1.0,
    "zero_overlap": 1.0,
    "never_hidden": 1.0,
    "link_outside": 1.0,
    "link_inside": 1.5,
    "low_precision": 1.9,
    "four_bits": 1.9,
    "send": 3.0,
    "rows": 2000.0,
    "elementwise": 30.0,
    "frozen_mlp": 1.0,
    "frozen_attention": 1.0,
    "norm": 16.0,
    "selective_passes": 0.5,
    "checkpoint": 12.0,
    "gathered": 6.0,
    "states_slack": 0.3,
    "overhead": 1.8,
    "communicators": 2.0,
}
FLOORS = {
    "norm": 2.0,
    "gated": 2.0,
    "gathered": 0.5,
    "elementwise": 4.0,
    "compiled_time": 0.5,
    "low_precision": 1.0,
    "overhead": 0.1,
    "checkpoint": 0.5,
    "logits": 6.0,
}
# published without memory, or nearly so: that a row ran bounds its memory
ONLY_RAN = {"foundry", "megatron", "internevo"}
# what saved-tensor hooks find on Transformers' own Llama block (a test holds it)
EAGER = {"norm": 8.0, "query": 4.0, "keys": 4.0}
OF_ADAPTERS = {"litgpt", "qwen", "qwen-int4", "swift", "torchtune"}  # their tables are judged by the median
OWN_RULE = {"nanotron"}  # its published memory is the first stage's (see docs/explanation/planner.md)


def predicted_memory(row: Row, sets: Mapping[str, Coefficients]) -> float:
    """Bytes of the rank whose memory the source publishes."""
    c = MemoryCoefficients(**{**sets["default"], **sets.get(row.system, {})})
    return peak_of(row.work, c, 0).total if row.system in OWN_RULE else worst_peak(row.work, c)[1].total


def memory_error(row: Row, c: Coefficients) -> float:
    """The logarithm of predicted over measured; where only "it ran" is known, what goes beyond the card."""
    predicted = predicted_memory(row, {"default": c})
    return (
        math.log(predicted / row.memory)
        if row.memory
        else max(0.0, math.log(predicted / (0.93 * row.work.machine.memory)))
    )


def predicted_speed(row: Row, sets: Mapping[str, Coefficients]) -> float:
    """Tokens a second a rank."""
    c = SpeedCoefficients(**{**sets["default"], **sets.get(row.system, {})})
    return speed_of(row.work, c).tokens_per_second_per_rank


def fit_memory(rows: Sequence[Row], rounds: int) -> Sets:
    """All sets; nanotron's is fitted first and the default starts from it, for its rows are by far the
    most.
    """
    rows = [row for row in rows if row.memory or (row.ran and row.system in ONLY_RAN)]
    sets: Sets = {"default": dict(MEMORY_START)}
    for system in ("nanotron", "default", *(s for s in MEMORY_MOVES if s not in ("nanotron", "default"))):
        own = _own(rows, system, MEMORY_MOVES)
        start = {**(sets["nanotron"] if system == "default" and "nanotron" in sets else sets["default"])}
        if system in OF_ADAPTERS:
            start = dict(MEMORY_START)
        if system == "default":
            start |= {
                "compiled": 0.85,
                "gathered": 4.0,
                "gathered_ends": 0.0,
                "gathered_pipeline": 0.0,
                "segments": 0.0,
                "norm": EAGER["norm"],
            }
        under = UNDER_ADAPTER if system in OF_ADAPTERS else UNDER

        def loss(c: Coefficients, own: list[Row] = own, system: str = system, under: float = under) -> float:
            errors = [memory_error(row, c) for row in own]
            return _mean(min(0.8, -e * under if e < 0 else e) for e in errors) + median(
                abs(e) for e in errors
            )

        if len(own) >= 3:
            sets[system] = fitted(("memory", system), own, start, MEMORY_MOVES[system], loss, rounds)
        if system == "nanotron" and system in sets:
            sets[system]["safety"] = _safety(own, sets[system])
    sets["default"] = {**sets["default"], **EAGER}
    return sets


def _safety(own: Sequence[Row], c: Coefficients) -> float:
    """What is laid on top so that fewer than ``TOO_LOW`` of the rows are underestimated by a tenth: an
    underestimate ends a run.
    """
    ratios = [predicted_memory(row, {"default": c}) / row.memory for row in own if row.memory]
    for safety in (0.0, 0.005, 0.01):
        if sum(ratio * (1 + safety) < 0.9 for ratio in ratios) < TOO_LOW * len(ratios):
            return safety
    return MOST_SAFETY


def fit_speed(rows: Sequence[Row], rounds: int) -> Sets:
    """All sets, in the same order."""
    rows = [row for row in rows if row.speed]
    sets: Sets = {"default": dict(SPEED_START)}
    for system in ("nanotron", "default", "foundry", "megatron", "titan", "internevo"):
        own = _own(rows, system, SPEED_MOVES)
        start = dict(sets["default"])
        if system == "nanotron":
            start["tensor_pipeline"] = 3.2
        if system == "default" and "nanotron" in sets:
            start |= {name: sets["nanotron"][name] for name in STARTED_FROM_NANOTRON}

        def loss(c: Coefficients, own: list[Row] = own) -> float:
            errors = [abs(math.log(predicted_speed(row, {"default": c}) / row.speed)) for row in own]  # type: ignore[operator]
            return median(errors) + _mean(min(e, 0.7) for e in errors) + quantile(errors, 0.75) / 2

        if len(own) >= 3:
            sets[system] = fitted(("speed", system), own, start, SPEED_MOVES[system], loss, rounds)
    return sets


def _own(rows: Sequence[Row], system: str, moves: Mapping[str, object]) -> list[Row]:
    if system == "default":
        return [row for row in rows if row.system not in moves or row.system == "titan"]
    return [row for row in rows if row.system == system]


_FITTED: dict[object, Coefficients] = {}


def fitted(
    key: tuple[object, ...],
    own: Sequence[Row],
    start: Coefficients,
    names: Sequence[str],
    loss: Callable[[Coefficients], float],
    rounds: int,
) -> Coefficients:
    """``descend``, or its answer when the same rows were fitted from the same start before (folds share
    most systems).
    """
    whole = (*key, tuple(row.id for row in own), tuple(sorted(start.items())), rounds)
    if whole not in _FITTED:
        _FITTED[whole] = descend(start, names, loss, rounds)
    return _FITTED[whole]


def descend(
    start: Coefficients, names: Sequence[str], loss: Callable[[Coefficients], float], rounds: int
) -> Coefficients:
    """One coefficient after the other, up or down as long as it helps; the step shrinks every round. None
    leaves its limits.
    """
    best, found = loss(start), dict(start)
    step = {name: 0.25 * abs(found[name]) or 0.1 for name in names}
    for _ in range(rounds):
        for name in names:
            for sign in (1, -1):
                while True:
                    tried = {**found, name: found[name] + sign * step[name]}
                    if not FLOORS.get(name, 0.0) <= tried[name] <= LIMITS.get(name, math.inf):
                        break
                    value = loss(tried)
                    if value >= best - 1e-6:
                        break
                    best, found = value, tried
        step = {name: size / 1.8 for name, size in step.items()}
    return found


def median(values: Iterable[float]) -> float:
    return quantile(values, 0.5)


def quantile(values: Iterable[float], part: float) -> float:
    """Linear between the two nearest."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    at = part * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
