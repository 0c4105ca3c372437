"""DeepSpeed's learning-rate schedules as pure functions of the step.

After ``deepspeed/runtime/lr_schedules.py`` of 0.19.8. DeepSpeed advances its schedule after each update, so
step s (from 0) uses what it calls iteration s - 1: the first two steps both have the rate at the start of the
warm-up. ``total_num_steps`` None means the length of the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Rate = Callable[[int], float]


def warmup_lr(
    base_lr: float, warmup: int, total: int, *, warmup_min_lr: float = 0.0, warmup_type: str = "log"
) -> Rate:
    """WarmupLR: from ``warmup_min_lr`` to ``base_lr`` over ``warmup`` steps, then ``base_lr``."""
    ramp = _ramp(warmup, warmup_type)

    def rate(step: int) -> float:
        gamma = ramp(step)
        return warmup_min_lr + (base_lr - warmup_min_lr) * (1.0 if gamma is None else gamma)

    return rate


def warmup_decay_lr(
    base_lr: float,
    warmup: int,
    total: int,
    *,
    total_num_steps: int | None = None,
    warmup_min_lr: float = 0.0,
    warmup_type: str = "log",
) -> Rate:
    """WarmupDecayLR: the same warm-up, then linear to ``warmup_min_lr`` at ``total_num_steps``."""
    ramp, end, start = _ramp(warmup, warmup_type), total_num_steps or total, _warmup_length(warmup)

    def rate(step: int) -> float:
        gamma = ramp(step)
        if gamma is None:
            gamma = max(0.0, (end - (step - 1)) / max(1.0, end - start))
        return warmup_min_lr + (base_lr - warmup_min_lr) * gamma

    return rate


def warmup_cosine_lr(
    base_lr: float,
    warmup: int,
    total: int,
    *,
    total_num_steps: int | None = None,
    warmup_min_ratio: float = 0.0,
    cos_min_ratio: float = 0.0001,
    warmup_type: str = "log",
) -> Rate:
    """WarmupCosineLR: ratios of ``base_lr``; the very first step has rate 0."""
    ramp, end, start = _ramp(warmup, warmup_type), total_num_steps or total, _warmup_length(warmup)

    def rate(step: int) -> float:
        gamma = ramp(step)
        if step == 0 and warmup > 0:
            return 0.0
        if gamma is not None:
            return base_lr * (warmup_min_ratio + gamma * (1.0 - warmup_min_ratio))
        progress = min(1.0, (step - start) / max(1, end - start))
        return base_lr * max(
            0.0, cos_min_ratio + (1.0 - cos_min_ratio) * (1 + math.cos(math.pi * progress)) / 2
        )

    return rate


def one_cycle(
    base_lr: float,
    warmup: int,
    total: int,
    *,
    cycle_min_lr: float,
    cycle_first_step_size: float = 2000,
    cycle_second_step_size: float | None = None,
    cycle_first_stair_count: int = 0,
    cycle_second_stair_count: int | None = None,
    decay_step_size: float = 0,
    decay_lr_rate: float = 0.0,
) -> Rate:
    """OneCycle without its momentum: up to ``base_lr``, down again, then decaying from ``cycle_min_lr``.

    ``warmup`` is ignored.
    """
    first = float(cycle_first_step_size)
    second = first if cycle_second_step_size is None else float(cycle_second_step_size)
    stairs = (
        cycle_first_stair_count,
        cycle_first_stair_count if cycle_second_stair_count is None else cycle_second_stair_count,
    )
    if first <= 0 or second < 0:
        raise ValueError("cycle_first_step_size must be above 0 and cycle_second_step_size at least 0")
    length = first + second

    def rate(step: int) -> float:
        if step - 1 < length:
            return cycle_min_lr + (base_lr - cycle_min_lr) * _cycle(step, first, second, stairs)
        if not decay_step_size or not decay_lr_rate:
            return cycle_min_lr
        return cycle_min_lr / (1 + decay_lr_rate * ((step - length) / decay_step_size))

    return rate


def lr_range_test(
    base_lr: float,
    warmup: int,
    total: int,
    *,
    lr_range_test_step_size: int = 2000,
    lr_range_test_step_rate: float = 1.0,
    lr_range_test_staircase: bool = False,
) -> Rate:
    """LRRangeTest: ``base_lr`` grows by the factor ``lr_range_test_step_rate`` of itself every
    ``lr_range_test_step_size`` steps.
    """
    if lr_range_test_step_size <= 0:
        raise ValueError("lr_range_test_step_size must be above 0")

    def rate(step: int) -> float:
        interval = step / lr_range_test_step_size
        return base_lr * (
            1 + lr_range_test_step_rate * (math.floor(interval) if lr_range_test_staircase else interval)
        )

    return rate


BUILDERS: dict[str, Callable[..., Rate]] = {
    "warmup_lr": warmup_lr,
    "warmup_decay_lr": warmup_decay_lr,
    "warmup_cosine_lr": warmup_cosine_lr,
    "one_cycle": one_cycle,
    "lr_range_test": lr_range_test,
}


def _warmup_length(warmup: int) -> int:
    """Return the warm-up steps: DeepSpeed has at least two; 0, which it rejects, means no warm-up here."""
    return max(2, warmup) if warmup > 0 else 0


def _ramp(warmup: int, kind: str) -> Callable[[int], float | None]:
    """Return a function from step to the progress of the warm-up, 0 to 1, or None after it."""
    if kind not in ("log", "linear"):
        raise ValueError(f"warmup_type must be log or linear, not {kind!r}")
    length = _warmup_length(warmup)

    def gamma(step: int) -> float | None:
        iteration = step - 1
        if iteration >= length or not length:
            return None
        if iteration < 0:
            return 0.0
        return iteration / length if kind == "linear" else math.log(iteration + 1) / math.log(length)

    return gamma


def _cycle(step: int, first: float, second: float, stairs: tuple[int, int]) -> float:
    """Return the position in the cycle between its lowest rate (0) and its highest (1)."""
    length = first + second
    x = 1.0 + step / length - math.floor(1 + step / length)
    rising = x <= first / length
    count = stairs[0] if rising else stairs[1]
    if count <= 0:
        return x / (first / length) if rising else (x - 1) / (first / length - 1)
    at = step % length
    position = at * count / first if at <= first else (length - at) * count / second
    return math.floor(position) / count
