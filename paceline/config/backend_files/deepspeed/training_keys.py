"""Read DeepSpeed's optimizer and scheduler as keys of ``training``, by 0.19.8's defaults."""

from __future__ import annotations

from paceline.config import codes
from paceline.config.backend_files.deepspeed.key_verdicts import (
    COMPRESSED,
    NO_OPTIMIZER,
    NO_SCHEDULE,
    OPTIMIZERS,
    SCHEDULES,
    EntryWriter,
    given_value,
    is_on,
)
from paceline.config.registries.optimizers import BUILT, KNOWN
from paceline.config.source import shown
from paceline.core.diagnostics import Severity
from paceline.core.json_types import Json, JsonObject

_RATES = {"adagrad": 1e-2, "rmsprop": 1e-2}
_RATE = 1e-3  # default of every other optimizer that DeepSpeed or torch builds by name
_TORCH_DECAY = 1e-2  # default of torch.optim.AdamW, which "torch_adam" chooses; 0 in DeepSpeed's Adams
_ADAM_REASONS = {
    "adam_w_mode": "Adam with weight decay inside the gradient is not supported, only AdamW",
    "amsgrad": "amsgrad is not supported",
    "bias_correction": "Adam without bias correction is not supported",
}
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


class OptimizerReader:
    """Reads the optimizer block; ``rate``: the learning rate that the schedule sets, if one does."""

    def __init__(self, writer: EntryWriter, kind: str, params: JsonObject, rate: float | None) -> None:
        self.writer = writer
        self.kind = kind
        self.params = params
        self.rate = rate
        self.name = kind.lower().replace("_", "")
        self.optim: str | None = None
        self.arguments: JsonObject = {}

    def run(self) -> None:
        """Read the type, then each parameter, then fill in DeepSpeed's defaults."""
        self._type()
        for key, value in self.params.items():
            if given_value(value):
                self._parameter(key, value, f"optimizer.params.{key}")
        if self.arguments:
            self._pass_on()
        if self.optim is None:
            return
        if self.rate is None and "lr" not in self.params:
            default = _RATES.get(self.optim, _RATE)
            self.writer.default(
                "training.learning_rate",
                default,
                "optimizer.params",
                f"DeepSpeed's {self.kind} without lr uses a learning rate of {default:g}, and so does this"
                " run",
                '"lr": "auto"',
            )
        if is_on(self.params.get("torch_adam")) and "weight_decay" not in self.params:
            self.writer.default(
                "training.weight_decay",
                _TORCH_DECAY,
                "optimizer.params",
                f"without weight_decay, torch's AdamW (selected by torch_adam) uses {_TORCH_DECAY:g}",
                '"weight_decay": 0',
            )

    def _type(self) -> None:
        path, writer = "optimizer.type", self.writer
        if self.name in OPTIMIZERS:
            self.optim = OPTIMIZERS[self.name]
        elif self.kind.lower() in (*BUILT, *KNOWN) and self.name not in NO_OPTIMIZER:
            self.optim = self.kind.lower()
            writer.note(
                path,
                f"{self.kind} is a Transformers name that DeepSpeed would refuse; it is read as"
                " training.optim",
            )
        elif self.name in COMPRESSED:
            self.optim = OPTIMIZERS["adamw"]
            writer.note(
                path,
                f"{COMPRESSED[self.name]}; here AdamW runs, with uncompressed moments",
                '"AdamW"',
                Severity.WARNING,
            )
        elif "training.optim" in writer.upper or self.name in ("auto", ""):
            name = self.kind or "(no type)"
            writer.note(path, f"DeepSpeed's optimizer {name} is ignored; training.optim overrides it")
        else:
            reason = NO_OPTIMIZER.get(
                self.name, "neither DeepSpeed nor torch has an optimizer of this name that is supported here"
            )
            writer.problem(
                codes.ZERO_OPTIMIZER,
                f"the optimizer {self.kind} cannot be used: {reason}",
                path,
                self.kind,
                'use "AdamW", or set training.optim in the YAML',
            )
        writer.set_entry("training.optim", self.optim, path)

    def _parameter(self, key: str, value: Json, path: str) -> None:
        writer = self.writer
        if key == "lr" and self.rate is None:
            writer.set_entry("training.learning_rate", value, path)
        elif key == "lr":
            if value != self.rate:
                message = f"lr {value} has no effect, as in DeepSpeed: the scheduler sets the rate, up to"
                writer.note(path, f"{message} {self.rate:g}", '"auto"')
        elif key == "weight_decay":
            writer.set_entry("training.weight_decay", value, path)
            if isinstance(value, (int, float)) and value is not True and value > 0:
                writer.note(
                    path,
                    "weight_decay: applied to matrices but not to biases and norms, as in"
                    " Transformers; DeepSpeed itself applies it to every parameter",
                )
        elif key == "betas":
            self._betas(value, path)
        elif key == "max_grad_norm":
            has_clipping = given_value(writer.normal.get("gradient_clipping"))
            writer.set_entry("training.max_grad_norm", None if has_clipping else value, path)
            verdict = "gradient_clipping overrides it" if has_clipping else "read as gradient_clipping"
            writer.note(
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
            writer.set_entry("training.adam_epsilon", value, path)
        else:
            self._other(key, value, path)

    def _other(self, key: str, value: Json, path: str) -> None:
        """Report a parameter that has no counterpart."""
        writer = self.writer
        if key in _CODE:
            writer.note(path, f"{key} selects an implementation of the same update, and is ignored")
        elif key in _COMPRESSION and self.name in (*COMPRESSED, "onebitlamb"):
            writer.note(path, f"{key} belongs to compressed communication, which is not used, and is ignored")
        elif key == "fp32_optimizer_states":
            if not is_on(value):
                writer.note(
                    path,
                    "moments are kept in float32: more exact, and twice the memory of bf16 moments",
                    "true",
                    Severity.WARNING,
                )
        elif self.optim is None:
            owner = self.kind or "the optimizer"
            writer.note(path, f"{key} belongs to {owner}, which is not used, and is ignored")
        else:
            writer.problem(
                codes.ZERO_OPTIMIZER_PARAMS,
                f"{self.kind} has no parameter '{key}' that is supported here; the update would"
                " differ from the one requested",
                path,
                f"{key}: {shown(key, value)}",
                f"remove it, or set training.optim_args: {key}=… if the optimizer has this option",
            )

    def _adam_switch(self, key: str, value: Json, path: str) -> None:
        decay_mode = key == "adam_w_mode"
        if self.name in COMPRESSED:
            self.writer.note(
                path,
                f"{key} belongs to {self.kind} and is ignored: plain AdamW runs instead",
                '"AdamW"',
                Severity.WARNING,
            )
        elif decay_mode and self.name == "adamw":
            self.writer.note(path, "adam_w_mode has no effect with the type AdamW, as in DeepSpeed")
        elif decay_mode and self.params.get("weight_decay", 0) in (0, 0.0, None):
            self.writer.note(path, "without weight decay Adam and AdamW are the same")
        else:
            self.writer.problem(
                codes.ZERO_OPTIMIZER,
                f"{self.kind}: {_ADAM_REASONS[key]}",
                path,
                f"{key}: {shown(key, value)}",
                "remove the key",
            )

    def _betas(self, value: Json, path: str) -> None:
        if isinstance(value, list) and len(value) == 2:
            for item, to in zip(value, ("adam_beta1", "adam_beta2"), strict=True):
                self.writer.set_entry(f"training.{to}", item, path)
        else:
            self.writer.problem(
                codes.CONFIG_TYPE,
                f"{path} must be a list of two numbers",
                path,
                shown("", value),
                "[0.9, 0.999]",
            )

    def _pass_on(self) -> None:
        """Pass the parameters of torch's optimizer class on as ``optim_args``."""
        writer, path = self.writer, f"optimizer.params.{next(iter(self.arguments))}"
        wrong = {key: value for key, value in self.arguments.items() if not isinstance(value, (int, float))}
        for key, value in wrong.items():
            where, remedy = f"optimizer.params.{key}", "give a valid value, or remove the key"
            writer.problem(
                codes.CONFIG_TYPE,
                f"{where} must be a number, true or false",
                where,
                shown(key, value),
                remedy,
            )
        if "training.optim" in writer.upper:
            writer.note(
                path,
                f"{', '.join(self.arguments)}: parameters of {self.kind}; training.optim selects another"
                " optimizer, whose parameters are set in training.optim_args",
            )
        elif not wrong:
            writer.set_entry(
                "training.optim_args", ",".join(f"{k}={v}" for k, v in self.arguments.items()), path
            )


def read_scheduler(writer: EntryWriter) -> float | None:
    """Add the block's entries for ``training``; return the learning rate that the schedule sets, or None."""
    block = writer.typed("scheduler")
    if block is None:
        if "training.lr_scheduler_type" not in writer.upper and writer.typed("optimizer"):
            writer.note(
                "optimizer",
                "no scheduler block: DeepSpeed alone would keep the learning rate constant; here"
                " training.lr_scheduler_type applies (linear by default, as in Transformers)",
                "training.lr_scheduler_type: constant",
            )
        return None
    kind, params = block
    name = SCHEDULES.get(kind.lower())
    # Where a higher layer names another schedule, this one is not read
    if name is None or writer.upper.get("training.lr_scheduler_type", name) != name:
        _not_taken(writer, kind, params, name is not None)
        return None
    # Momentum would have to follow the rate, which no optimizer here does
    if name == "one_cycle" and not _cycle(writer, params):
        return None
    writer.set_entry("training.lr_scheduler_type", name, "scheduler.type")
    if name.startswith("warmup") and "warmup_num_steps" in params:
        writer.set_entry(
            "training.warmup_steps", params["warmup_num_steps"], "scheduler.params.warmup_num_steps"
        )
    elif name.startswith("warmup"):
        writer.default(
            "training.warmup_steps",
            _WARMUP_STEPS,
            "scheduler.params",
            f"without warmup_num_steps DeepSpeed warms up over {_WARMUP_STEPS} steps, and so does this run",
            '"warmup_num_steps": "auto"',
        )
    _kwargs(writer, kind, name, params)
    return _rate(writer, kind, name, params)


def _not_taken(writer: EntryWriter, kind: str, params: JsonObject, has_schedule: bool) -> None:
    """Report that another schedule runs; only the warm-up length of this one is used."""
    for key, value in params.items():
        if key == "warmup_num_steps":
            writer.set_entry("training.warmup_steps", value, f"scheduler.params.{key}")
        elif given_value(value):
            writer.note(
                f"scheduler.params.{key}",
                f"{key} belongs to the file's scheduler and is ignored;"
                " training.lr_scheduler_kwargs takes the options of the schedule that runs",
            )
    if has_schedule or "training.lr_scheduler_type" in writer.upper or kind.lower() in ("auto", ""):
        writer.note(
            "scheduler.type",
            f"the scheduler {kind or '(no type)'} is ignored; training.lr_scheduler_type overrides it",
            "remove the block, or training.lr_scheduler_type",
        )
        return
    reason = NO_SCHEDULE.get(
        kind.lower(), "DeepSpeed has no such scheduler, and torch's scheduler of this name is not supported"
    )
    writer.problem(
        codes.ZERO_SCHEDULER,
        f"the scheduler {kind} cannot be used: {reason}",
        "scheduler.type",
        kind,
        f"{_NAMES}, or set lr_scheduler_type in the YAML",
    )


def _cycle(writer: EntryWriter, params: JsonObject) -> bool:
    """Whether this OneCycle is supported: only the learning rate is scheduled here, not the momentum."""
    if "training.lr_scheduler_type" not in writer.upper and is_on(params.get("cycle_momentum", True)):
        writer.problem(
            codes.ZERO_SCHEDULER,
            "OneCycle also cycles the momentum, which is not supported, unless cycle_momentum is false",
            "scheduler.params.cycle_momentum" if "cycle_momentum" in params else "scheduler.type",
            "cycle_momentum: true (the default)",
            'set "cycle_momentum": false, or training.lr_scheduler_type',
        )
        return False
    missing = [key for key in ("cycle_min_lr", "cycle_max_lr") if key not in params]
    for key in missing:
        writer.problem(
            codes.CONFIG_VALUE,
            f"OneCycle requires {key}, in DeepSpeed as well",
            "scheduler.params",
            f"no {key}",
            f'"{key}": …',
        )
    return not missing


def _kwargs(writer: EntryWriter, kind: str, name: str, params: JsonObject) -> None:
    """Pass on the schedule's own parameters; refuse unknown ones, which DeepSpeed refuses too."""
    rate, options = _PARAMS[name]
    kwargs = {key: params[key] for key in options if given_value(params.get(key))}
    for key, value in kwargs.items():
        path = f"scheduler.params.{key}"
        if key == "warmup_type" and value not in ("log", "linear"):
            writer.note(path, f"warmup_type {value} is unknown to DeepSpeed, which uses log in that case")
            kwargs[key] = "log"
        elif key != "warmup_type" and not isinstance(value, (int, float)):
            writer.problem(
                codes.CONFIG_TYPE,
                f"{path} must be a number",
                path,
                shown(key, value),
                'write "auto", or a number',
            )
            kwargs[key] = None  # already reported: keep the rules from repeating it
    momentum = _MOMENTUM if name == "one_cycle" else ()
    accepted = (*options, *momentum, rate, "warmup_num_steps", "last_batch_iteration")
    for key in [key for key in params if key not in accepted]:
        writer.problem(
            codes.ZERO_SCHEDULER,
            f"{kind} has no parameter '{key}'",
            f"scheduler.params.{key}",
            key,
            f"one of {', '.join(filter(None, (rate, *options)))}",
        )
    if name in ("warmup_decay_lr", "warmup_cosine_lr") and "total_num_steps" not in params:
        writer.note(
            "scheduler.params",
            f"{kind} requires total_num_steps in DeepSpeed; the number of steps of the run is used",
            '"total_num_steps": "auto"',
        )
    if kwargs:
        writer.set_entry("training.lr_scheduler_kwargs", kwargs, f"scheduler.params.{next(iter(kwargs))}")


def _rate(writer: EntryWriter, kind: str, name: str, params: JsonObject) -> float | None:
    """Return the schedule's peak learning rate (LRRangeTest: its start).

    None if the optimizer sets it, or if it is "auto".
    """
    key = _PARAMS[name][0]
    value, path = params.get(key), f"scheduler.params.{key}"
    if given_value(value):
        if name == "warmup_cosine_lr":
            writer.note(
                path,
                f"DeepSpeed's {kind} has no {key} and refuses it: it is read as the optimizer's lr",
                '"lr"',
            )
        optimizer = writer.typed("optimizer")
        if optimizer is not None and optimizer[1].get("lr") == value:
            return None  # both are equal: the optimizer's is used
        writer.set_entry("training.learning_rate", value, path)
        return float(value) if isinstance(value, (int, float)) else None
    if key in params or name in ("warmup_lr", "warmup_cosine_lr"):
        return None
    writer.default(
        "training.learning_rate",
        _PEAK_RATE,
        "scheduler.params",
        f"without {key} DeepSpeed's {kind} uses {_PEAK_RATE:g}, and so does this run",
        f'"{key}": "auto"',
    )
    return _PEAK_RATE
