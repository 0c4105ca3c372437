"""Learning-rate schedules as pure functions of the step, by the names of Transformers and DeepSpeed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from paceline.config.registries.lr_schedules import STATEFUL
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json
from paceline.training import codes


def warmup_count(warmup_steps: float, total_steps: int) -> int:
    """Return the warm-up steps: ``warmup_steps`` >= 1 is a count, below 1 a fraction of the run (rounded up),
    as in TrainingArguments 5.
    """
    return int(warmup_steps) if warmup_steps >= 1 else math.ceil(warmup_steps * total_steps)


def _linear(step: int, warmup: int, total: int) -> float:
    return step / warmup if step < warmup else max(0.0, (total - step) / max(1, total - warmup))


def _cosine(step: int, warmup: int, total: int) -> float:
    if step < warmup:
        return step / warmup
    progress = (step - warmup) / max(1, total - warmup)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * progress)))


#: Transformers' usual schedules, as factors of the learning rate of (step, warm-up steps, steps).
PLAIN: Mapping[str, Callable[[int, int, int], float]] = {
    "constant": lambda step, warmup, total: 1.0,
    "constant_with_warmup": lambda step, warmup, total: step / warmup if step < warmup else 1.0,
    "linear": _linear,
    "cosine": _cosine,
}


def learning_rate_schedule(
    name: str, base_lr: float, warmup_steps: float, total_steps: int, kwargs: Mapping[str, Json] | None = None
) -> Callable[[int], float]:
    """Return ``lr(step)`` for 0-based ``step``.

    Computed by ``transformers.get_scheduler``'s own function on a dummy optimizer, or by DeepSpeed's rule. A
    schedule of PLAIN without arguments is computed here, to the same bit. Transformers' module would import
    peft, bitsandbytes and torch's compiler: a second of CPU before the first step. Raises ConfigError if the
    name is unknown or stateful, or its keyword arguments do not fit.
    """
    if name in PLAIN and not kwargs:
        warmup, plain = warmup_count(warmup_steps, total_steps), PLAIN[name]
        return lambda step: base_lr * plain(step, warmup, total_steps)
    from transformers import SchedulerType, get_scheduler

    if name in DEEPSPEED:
        try:
            run = RateOfRun(base_lr, warmup_count(warmup_steps, total_steps), total_steps)
            schedule = partial(DEEPSPEED[name], run, **dict(kwargs or {}))
            schedule(0)  # an argument that it rejects ends the start, not the first step
            return schedule
        except (TypeError, ValueError) as exc:
            raise _misfit(name, exc) from exc
    # Only schedules that are a function of the step: a resumed run must reproduce them
    names = [member.value for member in SchedulerType if member.value not in STATEFUL] + list(DEEPSPEED)
    if name not in names:
        why = (
            "it depends on measured losses, so a resumed run could not reproduce it"
            if name in STATEFUL
            else "unknown name"
        )
        raise ConfigError(
            codes.TRAINING_LR_SCHEDULER_TYPE(
                "training.lr_scheduler_type", name, name=name, why=why, names=", ".join(names)
            )
        )
    # Transformers' own factor of the learning rate, taken from a scheduler of a dummy optimizer
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=base_lr)  # polynomial reads it
    try:
        scheduler = get_scheduler(
            name,
            optimizer,
            num_warmup_steps=warmup_count(warmup_steps, total_steps),
            num_training_steps=total_steps,
            scheduler_specific_kwargs=dict(kwargs or {}),
        )
    except (TypeError, ValueError) as exc:
        raise _misfit(name, exc) from exc
    factor = scheduler.lr_lambdas[0]
    return lambda step: base_lr * float(factor(step))


def _misfit(name: str, exc: Exception) -> ConfigError:
    return ConfigError(
        codes.TRAINING_LR_SCHEDULER_KWARGS("training.lr_scheduler_kwargs", str(exc), name=name)
    )


# DeepSpeed's schedules, after ``deepspeed/runtime/lr_schedules.py`` of 0.19.8. It advances its schedule after
# each update, so step s (from 0) uses what it calls iteration s - 1: the first two steps both have the rate
# at the start of the warm-up. ``total_num_steps`` None means the length of the run.


@dataclass(frozen=True)
class RateOfRun:
    """A run's learning rate, and its steps: of the warm-up, and in ``total``."""

    base_lr: float
    warmup: int
    total: int


def warmup_lr(
    run: RateOfRun,
    step: int,
    *,
    warmup_min_lr: float = 0.0,
    warmup_type: str = "log",
) -> float:
    """WarmupLR: from ``warmup_min_lr`` to ``base_lr`` over ``warmup`` steps, then ``base_lr``."""
    gamma = _ramp(step, run.warmup, warmup_type)
    return warmup_min_lr + (run.base_lr - warmup_min_lr) * (1.0 if gamma is None else gamma)


def warmup_decay_lr(
    run: RateOfRun,
    step: int,
    *,
    total_num_steps: int | None = None,
    warmup_min_lr: float = 0.0,
    warmup_type: str = "log",
) -> float:
    """WarmupDecayLR: the same warm-up, then linear to ``warmup_min_lr`` at ``total_num_steps``."""
    gamma, end = _ramp(step, run.warmup, warmup_type), total_num_steps or run.total
    if gamma is None:
        gamma = max(0.0, (end - (step - 1)) / max(1.0, end - _warmup_length(run.warmup)))
    return warmup_min_lr + (run.base_lr - warmup_min_lr) * gamma


def warmup_cosine_lr(
    run: RateOfRun,
    step: int,
    *,
    total_num_steps: int | None = None,
    warmup_min_ratio: float = 0.0,
    cos_min_ratio: float = 0.0001,
    warmup_type: str = "log",
) -> float:
    """WarmupCosineLR: ratios of ``base_lr``; the very first step has rate 0."""
    gamma, start = _ramp(step, run.warmup, warmup_type), _warmup_length(run.warmup)
    end = total_num_steps or run.total
    if step == 0 and run.warmup > 0:
        return 0.0
    if gamma is not None:
        return run.base_lr * (warmup_min_ratio + gamma * (1.0 - warmup_min_ratio))
    progress = min(1.0, (step - start) / max(1, end - start))
    return run.base_lr * max(
        0.0, cos_min_ratio + (1.0 - cos_min_ratio) * (1 + math.cos(math.pi * progress)) / 2
    )


def one_cycle(
    run: RateOfRun,
    step: int,
    *,
    cycle_min_lr: float,
    cycle_first_step_size: float = 2000,
    cycle_second_step_size: float | None = None,
    cycle_first_stair_count: int = 0,
    cycle_second_stair_count: int | None = None,
    decay_step_size: float = 0,
    decay_lr_rate: float = 0.0,
) -> float:
    """OneCycle without its momentum: up to ``base_lr``, down again, then decaying from ``cycle_min_lr``.

    ``warmup`` is ignored.
    """
    first = float(cycle_first_step_size)
    second = first if cycle_second_step_size is None else float(cycle_second_step_size)
    if first <= 0 or second < 0:
        raise ValueError("cycle_first_step_size must be above 0 and cycle_second_step_size at least 0")
    stairs = cycle_second_stair_count
    counts = cycle_first_stair_count, cycle_first_stair_count if stairs is None else stairs
    length = first + second
    if step - 1 < length:
        return cycle_min_lr + (run.base_lr - cycle_min_lr) * _cycle(step, first, second, counts)
    if not decay_step_size or not decay_lr_rate:
        return cycle_min_lr
    return cycle_min_lr / (1 + decay_lr_rate * ((step - length) / decay_step_size))


def lr_range_test(
    run: RateOfRun,
    step: int,
    *,
    lr_range_test_step_size: int = 2000,
    lr_range_test_step_rate: float = 1.0,
    lr_range_test_staircase: bool = False,
) -> float:
    """LRRangeTest: ``base_lr`` grows by the factor ``lr_range_test_step_rate`` of itself every
    ``lr_range_test_step_size`` steps.
    """
    if lr_range_test_step_size <= 0:
        raise ValueError("lr_range_test_step_size must be above 0")
    interval = step / lr_range_test_step_size
    steps = math.floor(interval) if lr_range_test_staircase else interval
    return run.base_lr * (1 + lr_range_test_step_rate * steps)


DEEPSPEED: Mapping[str, Callable[..., float]] = {
    "warmup_lr": warmup_lr,
    "warmup_decay_lr": warmup_decay_lr,
    "warmup_cosine_lr": warmup_cosine_lr,
    "one_cycle": one_cycle,
    "lr_range_test": lr_range_test,
}


def _warmup_length(warmup: int) -> int:
    """Return the warm-up steps: DeepSpeed has at least two; 0, which it rejects, means no warm-up here."""
    return max(2, warmup) if warmup > 0 else 0


def _ramp(step: int, warmup: int, kind: str) -> float | None:
    """Return the progress of the warm-up, 0 to 1, or None after it."""
    if kind not in ("log", "linear"):
        raise ValueError(f"warmup_type must be log or linear, not {kind!r}")
    length, iteration = _warmup_length(warmup), step - 1
    if iteration >= length or not length:
        return None
    if iteration < 0:
        return 0.0
    return iteration / length if kind == "linear" else math.log(iteration + 1) / math.log(length)


def _cycle(step: int, first: float, second: float, stairs: tuple[int, int]) -> float:
    """Return the position in the cycle between its lowest rate (0) and its highest (1)."""
    length = first + second
    x = 1.0 + step / length - math.floor(1 + step / length)
    rising = x <= first / length
    count = stairs[0] if rising else stairs[1]
    if count <= 0:
        return x / (first / length) if rising else (x - 1) / (first / length - 1)
    offset = step % length
    position = offset * count / first if offset <= first else (length - offset) * count / second
    return math.floor(position) / count
