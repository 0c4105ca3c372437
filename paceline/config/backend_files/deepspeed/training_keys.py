"""Read DeepSpeed's optimizer and scheduler as keys of ``training``, by 0.19.8's defaults."""

from __future__ import annotations

from paceline.config import codes
from paceline.config.backend_files.deepspeed.key_verdicts import (
    COMPRESSED,
    NO_OPTIMIZER,
    NO_SCHEDULE,
    OPTIMIZERS,
    SCHEDULES,
    Teller,
    given_value,
    is_on,
    number_in,
)
from paceline.config.registries.optimizers import BUILT, KNOWN
from paceline.config.source import shown
from paceline.core.json_types import Json, JsonObject

_RATES = {"adagrad": 1e-2, "rmsprop": 1e-2}
_RATE = 1e-3  # default of every other optimizer that DeepSpeed or torch builds by name
_TORCH_DECAY = 1e-2  # default of torch.optim.AdamW, which "torch_adam" chooses; 0 in DeepSpeed's Adams
_ADAM_DEFAULTS = {"bias_correction": True, "amsgrad": False, "adam_w_mode": True}
#: ``training.optim`` → parameters (torch's names) that change the update and are passed on as optim_args
_ARGUMENTS: dict[str, frozenset[str]] = {
    "sgd": frozenset(["momentum", "dampening", "nesterov", "maximize"]),
    "adagrad": frozenset(["lr_decay", "initial_accumulator_value", "eps", "maximize"]),
    "rmsprop": frozenset(["alpha", "momentum", "centered", "eps", "maximize"]),
    "adamw_torch_fused": frozenset(["maximize"]),
}
#: parameters that choose an implementation and do not change the numbers
_CODE = frozenset(
    ["torch_adam", "fused", "foreach", "capturable", "differentiable", "set_grad_none", "adamw_mode"]
)
#: parameters of 1-bit Adam's compressed communication
_COMPRESSION = frozenset(
    [
        "freeze_step",
        "cuda_aware",
        "comm_backend_name",
        "var_freeze_step",
        "var_update_scaler",
        "local_step_scaler",
        "local_step_clipper",
    ]
)


def read_optimizer(teller: Teller, rate: float | None) -> None:
    """Add the block's entries for ``training``; ``rate``: the learning rate that the schedule sets."""
    block = teller.typed("optimizer")
    if block is not None:
        _OptimizerReader(teller, *block).run(rate)


class _OptimizerReader:
    def __init__(self, teller: Teller, kind: str, params: JsonObject) -> None:
        self.teller = teller
        self.kind = kind
        self.params = params
        self.name = kind.lower().replace("_", "")
        self.optim: str | None = None
        self.arguments: JsonObject = {}

    def run(self, rate: float | None) -> None:
        """Read the type, then each parameter, then fill in DeepSpeed's defaults."""
        self._type()
        for key, value in self.params.items():
            if given_value(value):
                self._parameter(key, value, rate)
        if self.arguments:
            self._carry()
        if self.optim is None:
            return
        if rate is None and "lr" not in self.params:
            default = _RATES.get(self.optim, _RATE)
            self.teller.default(
                "training.learning_rate",
                default,
                "optimizer.params",
                f"DeepSpeed's {self.kind} without lr uses a learning rate of {default:g}, and so does"
                " this run",
                '"lr": "auto"',
            )
        if is_on(self.params.get("torch_adam")) and "weight_decay" not in self.params:
            self.teller.default(
                "training.weight_decay",
                _TORCH_DECAY,
                "optimizer.params",
                f"without weight_decay, torch's AdamW (selected by torch_adam) uses {_TORCH_DECAY:g}",
                '"weight_decay": 0',
            )

    def _type(self) -> None:
        path, teller = "optimizer.type", self.teller
        if self.name in OPTIMIZERS:
            self.optim = OPTIMIZERS[self.name]
        elif self.kind.lower() in (*BUILT, *KNOWN) and self.name not in NO_OPTIMIZER:
            self.optim = self.kind.lower()
            teller.note(
                path,
                f"{self.kind} is a Transformers name that DeepSpeed would refuse; it is read as"
                " training.optim",
            )
        elif self.name in COMPRESSED:
            self.optim = OPTIMIZERS["adamw"]
            teller.warn(
                path, f"{COMPRESSED[self.name]}; here AdamW runs, with uncompressed moments", '"AdamW"'
            )
        elif "training.optim" in teller.upper or self.name in ("auto", ""):
            kind = self.kind or "(no type)"
            teller.note(path, f"DeepSpeed's optimizer {kind} is ignored; training.optim overrides it")
        else:
            reason = NO_OPTIMIZER.get(
                self.name, "neither DeepSpeed nor torch has an optimizer of this name that is supported here"
            )
            teller.problem(
                codes.ZERO_OPTIMIZER,
                f"the optimizer {self.kind} cannot be used: {reason}",
                path,
                self.kind,
                'use "AdamW", or set training.optim in the YAML',
            )
        teller.take("training.optim", self.optim, path)

    def _parameter(self, key: str, value: Json, rate: float | None) -> None:
        path, teller = f"optimizer.params.{key}", self.teller
        if key == "lr":
            self._rate(value, rate, path)
        elif key == "weight_decay":
            teller.take("training.weight_decay", value, path)
            if number_in(value) and value > 0:
                teller.note(
                    path,
                    "weight_decay: applied to matrices but not to biases and norms, as in"
                    " Transformers; DeepSpeed itself applies it to every parameter",
                )
        elif key == "betas":
            self._betas(value, path)
        elif key == "max_grad_norm":
            has_clipping = given_value(teller.normal.get("gradient_clipping"))
            teller.take("training.max_grad_norm", None if has_clipping else value, path)
            verdict = "gradient_clipping overrides it" if has_clipping else "read as gradient_clipping"
            teller.note(
                path,
                f"DeepSpeed refuses max_grad_norm among the optimizer's parameters; {verdict}",
                '"gradient_clipping"',
            )
        elif key in _ADAM_DEFAULTS:
            if is_on(value) is not _ADAM_DEFAULTS[key]:
                self._adam_switch(key, value, path)
        elif key in _ARGUMENTS.get(self.optim or "", ()):
            self.arguments[key] = value
        elif key == "eps":
            teller.take("training.adam_epsilon", value, path)
        else:
            self._other(key, value, path)

    def _other(self, key: str, value: Json, path: str) -> None:
        """Report a parameter that has no counterpart."""
        teller = self.teller
        if key in _CODE:
            teller.note(path, f"{key} selects an implementation of the same update, and is ignored")
        elif key in _COMPRESSION and self.name in (*COMPRESSED, "onebitlamb"):
            teller.note(path, f"{key} belongs to compressed communication, which is not used, and is ignored")
        elif key == "fp32_optimizer_states":
            if not is_on(value):
                teller.warn(
                    path,
                    "moments are kept in float32: more exact, and twice the memory of bf16 moments",
                    "true",
                )
        elif self.optim is None:
            teller.note(
                path, f"{key} belongs to {self.kind or 'the optimizer'}, which is not used, and is ignored"
            )
        else:
            teller.problem(
                codes.ZERO_OPTIMIZER_PARAMS,
                f"{self.kind} has no parameter '{key}' that is supported here; the update would"
                " differ from the one requested",
                path,
                f"{key}: {shown(key, value)}",
                f"remove it, or set training.optim_args: {key}=… if the optimizer has this option",
            )

    def _rate(self, value: Json, rate: float | None, path: str) -> None:
        if rate is None:
            self.teller.take("training.learning_rate", value, path)
        elif value != rate:
            self.teller.note(
                path,
                f"lr {value} has no effect, as in DeepSpeed: the scheduler sets the rate, up to {rate:g}",
                '"auto"',
            )

    def _adam_switch(self, key: str, value: Json, path: str) -> None:
        teller = self.teller
        if self.name in COMPRESSED:
            teller.warn(
                path, f"{key} belongs to {self.kind} and is ignored: plain AdamW runs instead", '"AdamW"'
            )
            return
        if key == "adam_w_mode" and self.name == "adamw":
            teller.note(path, "adam_w_mode has no effect with the type AdamW, as in DeepSpeed")
            return
        if key == "adam_w_mode" and self.params.get("weight_decay", 0) in (0, 0.0, None):
            teller.note(path, "without weight decay Adam and AdamW are the same")
            return
        reason = {
            "adam_w_mode": "Adam with weight decay inside the gradient is not supported, only AdamW",
            "amsgrad": "amsgrad is not supported",
            "bias_correction": "Adam without bias correction is not supported",
        }[key]
        teller.problem(
            codes.ZERO_OPTIMIZER,
            f"{self.kind}: {reason}",
            path,
            f"{key}: {shown(key, value)}",
            "remove the key",
        )

    def _betas(self, value: Json, path: str) -> None:
        if isinstance(value, list) and len(value) == 2:
            for item, to in zip(value, ("adam_beta1", "adam_beta2"), strict=True):
                self.teller.take(f"training.{to}", item, path)
        else:
            self.teller.problem(
                codes.CONFIG_TYPE,
                f"{path} must be a list of two numbers",
                path,
                shown("", value),
                "[0.9, 0.999]",
            )

    def _carry(self) -> None:
        """Pass the parameters of torch's optimizer class on as ``optim_args``."""
        teller, path = self.teller, f"optimizer.params.{next(iter(self.arguments))}"
        wrong = [key for key, value in self.arguments.items() if not isinstance(value, (int, float))]
        for key in wrong:
            teller.problem(
                codes.CONFIG_TYPE,
                f"optimizer.params.{key} must be a number, true or false",
                f"optimizer.params.{key}",
                shown(key, self.arguments[key]),
                "give a valid value, or remove the key",
            )
        if "training.optim" in teller.upper:
            names = ", ".join(self.arguments)
            teller.note(
                path,
                f"{names}: parameters of {self.kind}; training.optim selects another optimizer,"
                " whose parameters are set in training.optim_args",
            )
        elif not wrong:
            teller.take("training.optim_args", ",".join(f"{k}={v}" for k, v in self.arguments.items()), path)


_WARMUP_STEPS = 1000  # default of WarmupLR, WarmupDecayLR and WarmupCosineLR
_PEAK_RATE = 1e-3  # default of WarmupDecayLR's warmup_max_lr and LRRangeTest's minimum
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
        if "training.lr_scheduler_type" not in teller.upper and teller.typed("optimizer"):
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
    return teller.upper.get("training.lr_scheduler_type", name) != name


def _not_taken(teller: Teller, kind: str, params: JsonObject, has_schedule: bool) -> None:
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
    if has_schedule or "training.lr_scheduler_type" in teller.upper or kind.lower() in ("auto", ""):
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
    if "training.lr_scheduler_type" not in teller.upper and is_on(params.get("cycle_momentum", True)):
        message = "OneCycle also cycles the momentum, which is not supported, unless cycle_momentum is false"
        path = "scheduler.params.cycle_momentum" if "cycle_momentum" in params else "scheduler.type"
        teller.problem(
            codes.ZERO_SCHEDULER,
            message,
            path,
            "cycle_momentum: true (the default)",
            'set "cycle_momentum": false, or training.lr_scheduler_type',
        )
        return False
    missing = [key for key in ("cycle_min_lr", "cycle_max_lr") if key not in params]
    for key in missing:
        message = f"OneCycle requires {key}, in DeepSpeed as well"
        teller.problem(codes.CONFIG_VALUE, message, "scheduler.params", f"no {key}", f'"{key}": …')
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
    rate, options = _PARAMS[name]
    taken = {key: params[key] for key in options if given_value(params.get(key))}
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
            *options,
            rate,
            "warmup_num_steps",
            "last_batch_iteration",
            *(_MOMENTUM if name == "one_cycle" else ()),
        ):
            path, remedy = f"scheduler.params.{key}", f"one of {', '.join(filter(None, (rate, *options)))}"
            teller.problem(codes.ZERO_SCHEDULER, f"{kind} has no parameter '{key}'", path, key, remedy)
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
        _PEAK_RATE,
        "scheduler.params",
        f"without {key} DeepSpeed's {kind} uses {_PEAK_RATE:g}, and so does this run",
        f'"{key}": "auto"',
    )
    return _PEAK_RATE
