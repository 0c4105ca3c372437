"""The scheduler block of DeepSpeed's JSON as keys of ``training``, with DeepSpeed 0.19.8's defaults."""

from __future__ import annotations

from paceline.config import codes
from paceline.config.backend_files.deepspeed.entries import Teller, given_value
from paceline.config.backend_files.deepspeed.key_verdicts import NO_SCHEDULE, SCHEDULES, is_on
from paceline.config.source import shown
from paceline.core.json_types import JsonObject

_WARMUP_STEPS = 1000  # default of WarmupLR, WarmupDecayLR and WarmupCosineLR
_RATE = 1e-3  # default of WarmupDecayLR's warmup_max_lr and LRRangeTest's minimum
_NAMES = 'use "WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle" or "LRRangeTest"'
#: schedule → (the parameter that becomes training.learning_rate, those that become lr_scheduler_kwargs)
_PARAMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "warmup_lr": ("warmup_max_lr", ("warmup_min_lr", "warmup_type")),
    "warmup_decay_lr": ("warmup_max_lr", ("warmup_min_lr", "warmup_type", "total_num_steps")),
    "warmup_cosine_lr": (
        "warmup_max_lr",
        ("warmup_min_ratio", "cos_min_ratio", "warmup_type", "total_num_steps"),
    ),
    "one_cycle": (
        "cycle_max_lr",
        (
            "cycle_min_lr",
            "cycle_first_step_size",
            "cycle_second_step_size",
            "cycle_first_stair_count",
            "cycle_second_stair_count",
            "decay_step_size",
            "decay_lr_rate",
        ),
    ),
    "lr_range_test": (
        "lr_range_test_min_lr",
        ("lr_range_test_step_size", "lr_range_test_step_rate", "lr_range_test_staircase"),
    ),
}
_MOMENTUM = frozenset(["cycle_momentum", "cycle_min_mom", "cycle_max_mom", "decay_mom_rate"])


def read_scheduler(teller: Teller) -> float | None:
    """Add the block's entries for ``training``; return the learning rate that the schedule sets, or None."""
    block = teller.typed("scheduler")
    if block is None:
        if "training.lr_scheduler_type" not in teller.given and teller.typed("optimizer"):
            teller.note(
                "optimizer",
                "no scheduler block: DeepSpeed alone would keep the learning rate constant; here"
                " training.lr_scheduler_type applies (linear by default, as in Transformers)",
                "training.lr_scheduler_type: constant",
            )
        return None
    kind, params = block
    name = SCHEDULES.get(kind.lower())
    if name is None or _overruled(teller, name):
        _not_taken(teller, kind, params, name is not None)
        return None
    if name == "one_cycle" and not _cycle(teller, params):
        return None
    teller.take("training.lr_scheduler_type", name, "scheduler.type")
    _warmup_steps(teller, name, params)
    _kwargs(teller, kind, name, params)
    return _rate(teller, kind, name, params)


def _overruled(teller: Teller, name: str) -> bool:
    """Whether a higher layer names another schedule."""
    return teller.given.get("training.lr_scheduler_type", name) != name


def _not_taken(teller: Teller, kind: str, params: JsonObject, known: bool) -> None:
    """Report that another schedule runs; only the warm-up length of this one is used."""
    for key, value in params.items():
        if key == "warmup_num_steps":
            teller.take("training.warmup_steps", value, f"scheduler.params.{key}")
        elif given_value(value):
            teller.note(
                f"scheduler.params.{key}",
                f"{key} belongs to the file's scheduler and is ignored;"
                " training.lr_scheduler_kwargs takes the options of the schedule that runs",
            )
    if known or "training.lr_scheduler_type" in teller.given or kind.lower() in ("auto", ""):
        teller.note(
            "scheduler.type",
            f"the scheduler {kind or '(no type)'} is ignored; training.lr_scheduler_type overrides it",
            "remove the block, or training.lr_scheduler_type",
        )
        return
    reason = NO_SCHEDULE.get(
        kind.lower(), "DeepSpeed has no such scheduler, and torch's scheduler of this name is not supported"
    )
    teller.problem(
        codes.ZERO_SCHEDULER,
        f"the scheduler {kind} cannot be used: {reason}",
        "scheduler.type",
        kind,
        f"{_NAMES}, or set lr_scheduler_type in the YAML",
    )


def _cycle(teller: Teller, params: JsonObject) -> bool:
    """Whether this OneCycle is supported: only the learning rate is scheduled here, not the momentum."""
    if "training.lr_scheduler_type" not in teller.given and is_on(params.get("cycle_momentum", True)):
        what = "OneCycle also cycles the momentum, which is not supported, unless cycle_momentum is false"
        path = "scheduler.params.cycle_momentum" if "cycle_momentum" in params else "scheduler.type"
        teller.problem(
            codes.ZERO_SCHEDULER,
            what,
            path,
            "cycle_momentum: true (the default)",
            'set "cycle_momentum": false, or training.lr_scheduler_type',
        )
        return False
    missing = [key for key in ("cycle_min_lr", "cycle_max_lr") if key not in params]
    for key in missing:
        what = f"OneCycle requires {key}, in DeepSpeed as well"
        teller.problem(codes.CONFIG_VALUE, what, "scheduler.params", f"no {key}", f'"{key}": …')
    return not missing


def _warmup_steps(teller: Teller, name: str, params: JsonObject) -> None:
    if not name.startswith("warmup"):
        return
    path = "scheduler.params.warmup_num_steps"
    if "warmup_num_steps" in params:
        teller.take("training.warmup_steps", params["warmup_num_steps"], path)
        return
    teller.default(
        "training.warmup_steps",
        _WARMUP_STEPS,
        "scheduler.params",
        f"without warmup_num_steps DeepSpeed warms up over {_WARMUP_STEPS} steps, and so does this run",
        '"warmup_num_steps": "auto"',
    )


def _kwargs(teller: Teller, kind: str, name: str, params: JsonObject) -> None:
    """Pass on the schedule's own parameters; refuse unknown ones, which DeepSpeed refuses too."""
    # Check the values of known parameters
    rate, known = _PARAMS[name]
    taken = {key: params[key] for key in known if given_value(params.get(key))}
    for key, value in taken.items():
        if key == "warmup_type" and value not in ("log", "linear"):
            teller.note(
                f"scheduler.params.{key}",
                f"warmup_type {value} is unknown to DeepSpeed, which uses log in that case",
            )
            taken[key] = "log"
        elif key != "warmup_type" and not isinstance(value, (int, float)):
            path = f"scheduler.params.{key}"
            teller.problem(
                codes.CONFIG_TYPE,
                f"{path} must be a number",
                path,
                shown(key, value),
                'write "auto", or a number',
            )
            taken[key] = None  # already reported: keep the rules from repeating it
    # Refuse parameters that this schedule does not have
    for key in params:
        if key not in (
            *known,
            rate,
            "warmup_num_steps",
            "last_batch_iteration",
            *(_MOMENTUM if name == "one_cycle" else ()),
        ):
            path, hint = f"scheduler.params.{key}", f"one of {', '.join(filter(None, (rate, *known)))}"
            teller.problem(codes.ZERO_SCHEDULER, f"{kind} has no parameter '{key}'", path, key, hint)
    if name in ("warmup_decay_lr", "warmup_cosine_lr") and "total_num_steps" not in params:
        teller.note(
            "scheduler.params",
            f"{kind} requires total_num_steps in DeepSpeed; the number of steps of the run is used",
            '"total_num_steps": "auto"',
        )
    if taken:
        teller.take("training.lr_scheduler_kwargs", taken, f"scheduler.params.{next(iter(taken))}")


def _rate(teller: Teller, kind: str, name: str, params: JsonObject) -> float | None:
    """Return the schedule's peak learning rate (LRRangeTest: its start).

    None if the optimizer sets it, or if it is "auto".
    """
    key = _PARAMS[name][0]
    value, path = params.get(key), f"scheduler.params.{key}"
    if given_value(value):
        if name == "warmup_cosine_lr":
            teller.note(
                path,
                f"DeepSpeed's {kind} has no {key} and refuses it: it is read as the optimizer's lr",
                '"lr"',
            )
        optimizer = teller.typed("optimizer")
        if optimizer is not None and optimizer[1].get("lr") == value:
            return None  # both are equal: the optimizer's is used
        teller.take("training.learning_rate", value, path)
        return float(value) if isinstance(value, (int, float)) else None
    if key in params or name in ("warmup_lr", "warmup_cosine_lr"):
        return None
    teller.default(
        "training.learning_rate",
        _RATE,
        "scheduler.params",
        f"without {key} DeepSpeed's {kind} uses {_RATE:g}, and so does this run",
        f'"{key}": "auto"',
    )
    return _RATE
