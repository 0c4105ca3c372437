"""Learning-rate schedules as pure functions of the step, by the names of Transformers and DeepSpeed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from paceline.config.registries.lr_schedules import STATEFUL
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json
from paceline.training import codes
from paceline.training.loop.deepspeed_lr_schedules import BUILDERS


def warmup_count(warmup_steps: float, total_steps: int) -> int:
    """Return the warm-up steps: ``warmup_steps`` >= 1 is a count, below 1 a fraction of the run (rounded up),
    as in TrainingArguments 5.
    """
    return int(warmup_steps) if warmup_steps >= 1 else math.ceil(warmup_steps * total_steps)


def _constant(step: int, warmup: int, total: int) -> float:
    return 1.0


def _warmed_up(step: int, warmup: int, total: int) -> float:
    return step / warmup if step < warmup else 1.0


def _linear(step: int, warmup: int, total: int) -> float:
    return step / warmup if step < warmup else max(0.0, (total - step) / max(1, total - warmup))


def _cosine(step: int, warmup: int, total: int) -> float:
    if step < warmup:
        return step / warmup
    progress = (step - warmup) / max(1, total - warmup)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * progress)))


#: Transformers' usual schedules, as factors of the learning rate of (step, warm-up steps, steps).
PLAIN: Mapping[str, Callable[[int, int, int], float]] = {
    "constant": _constant,
    "constant_with_warmup": _warmed_up,
    "linear": _linear,
    "cosine": _cosine,
}


def learning_rate_schedule(
    name: str, base_lr: float, warmup_steps: float, total_steps: int, kwargs: Mapping[str, Json] | None = None
) -> Callable[[int], float]:
    """Return ``lr(step)`` for 0-based ``step``.

    Computed by ``transformers.get_scheduler``'s own function on a dummy optimizer, or by DeepSpeed's rule.
    One of PLAIN without arguments is computed here, to the same bit, as that function's module imports peft,
    bitsandbytes and torch's compiler: a second of CPU before the first step. Raises ConfigError if the name
    is unknown or stateful, or its keyword arguments do not fit.
    """
    if name in PLAIN and not kwargs:
        warmup, plain = warmup_count(warmup_steps, total_steps), PLAIN[name]
        return lambda step: base_lr * plain(step, warmup, total_steps)
    from transformers import SchedulerType, get_scheduler

    if name in BUILDERS:
        try:
            return BUILDERS[name](
                base_lr, warmup_count(warmup_steps, total_steps), total_steps, **dict(kwargs or {})
            )
        except (TypeError, ValueError) as exc:
            raise _misfit(name, exc) from exc
    # Only schedules that are a function of the step: a resumed run must reproduce them
    names = [member.value for member in SchedulerType if member.value not in STATEFUL] + list(BUILDERS)
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
