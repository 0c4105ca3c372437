"""The optimizer and scheduler blocks of DeepSpeed's JSON as keys of ``training``, which owns them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.config.foreign.deepspeed_verdicts import (
    COMPRESSED,
    NO_OPTIMIZER,
    NO_SCHEDULE,
    OPTIMIZERS,
    SCHEDULES,
    is_on,
)
from paceline.config.foreign.layer import Document, Foreign
from paceline.config.source import shown
from paceline.core.diagnostics import Diagnostic, Severity

_ADAM = {"lr": "learning_rate", "eps": "adam_epsilon", "weight_decay": "weight_decay"}
_WARMUP_STEPS = 1000  # of WarmupLR and its kin, where the file does not say
_ADAM_DEFAULTS = {"bias_correction": True, "amsgrad": False, "adam_w_mode": True}


class StepsReader:
    """Makes entries of the lowest layer from the normal form of one document."""

    def __init__(self, document: Document, found: Foreign, normal: dict[str, Any], given: Mapping[str, Any]) -> None:
        self.document = document
        self.found = found
        self.normal = normal
        self.given = given

    def steps(self) -> None:
        """Optimizer and schedule."""
        self._optimizer(self._scheduler())

    def _take(self, to: str, value: Any, path: str) -> None:
        if given_value(value):
            self.found.entries.append(self.document.entry(to, value, path))

    def _note(self, path: str, what: str, hint: str = "") -> None:
        self.found.notes.append(self.document.note(path, what, hint))

    def _warn(self, path: str, what: str, hint: str = "") -> None:
        self.found.notes.append(self.document.note(path, what, hint, Severity.WARNING))

    def _typed(self, name: str) -> tuple[str, dict[str, Any]] | None:
        block = self.normal.get(name)
        if not isinstance(block, dict):
            return None
        params = block.get("params")
        return str(block.get("type", "")), params if isinstance(params, dict) else {}

    def _optimizer(self, rate: Any) -> None:
        block = self._typed("optimizer")
        if block is None:
            return
        kind, params = block
        name = kind.lower().replace("_", "")
        place = "optimizer.type"
        if name in OPTIMIZERS:
            self._take("training.optim", OPTIMIZERS[name], place)
        elif name in COMPRESSED:
            self._take("training.optim", OPTIMIZERS["adamw"], place)
            what = f"{COMPRESSED[name]}; here AdamW runs, and moments are kept exact"
            self._warn(place, what, '"AdamW"')
        elif "training.optim" in self.given or name in ("auto", ""):
            self._note(place, f"DeepSpeed's optimizer {kind or '(no type)'} is not taken; training.optim decides")
        else:
            reason = NO_OPTIMIZER.get(name, "DeepSpeed and torch have no such optimizer that is built here")
            hint = '"AdamW", or training.optim in the YAML'
            self._problem("zero.optimizer", f"the optimizer {kind} is not taken: {reason}", place, kind, hint)
        for key, value in params.items():
            path = f"optimizer.params.{key}"
            if key in _ADAM:
                if key == "lr" and given_value(rate):
                    if given_value(value) and value != rate:
                        self._note(
                            path,
                            f"lr {value} has no effect, as in DeepSpeed: the schedule sets it, up to warmup_max_lr {rate}",
                            '"auto"',
                        )
                    continue
                self._take(f"training.{_ADAM[key]}", value, path)
            elif key == "betas":
                self._betas(value, path)
            elif key == "max_grad_norm":
                own = given_value(self.normal.get("gradient_clipping"))
                self._take("training.max_grad_norm", None if own else value, path)
                what = "gradient_clipping decides" if own else "read as gradient_clipping"
                self._note(
                    path,
                    f"DeepSpeed refuses max_grad_norm among the optimizer's parameters; {what}",
                    '"gradient_clipping"',
                )
            elif key in _ADAM_DEFAULTS and given_value(value) and is_on(value) is not _ADAM_DEFAULTS[key]:
                self._adam_switch(kind, key, value, params, path)
            elif key == "momentum" and given_value(value):
                self._take("training.optim_args", f"momentum={value}", path)
            elif given_value(value) and key not in _ADAM_DEFAULTS:
                self._note(
                    path,
                    f"{key} chooses DeepSpeed's own code for the optimizer and is not taken; the update is the same",
                )

    def _adam_switch(self, kind: str, key: str, value: Any, params: dict[str, Any], path: str) -> None:
        if kind.lower().replace("_", "") in COMPRESSED:
            self._warn(path, f"{key} belongs to {kind} and is not taken: AdamW as it is runs instead", '"AdamW"')
            return
        if key == "adam_w_mode" and params.get("weight_decay") in (0, 0.0, None):
            self._note(path, "without weight decay Adam and AdamW are the same")
            return
        what = {"adam_w_mode": "Adam with decay inside the gradient is not built, only AdamW", "amsgrad": "amsgrad is not built", "bias_correction": "Adam without bias correction is not built"}[key]  # fmt: skip
        self._problem("zero.optimizer", f"{kind}: {what}", path, f"{key}: {shown(key, value)}", "remove the key")

    def _betas(self, value: Any, path: str) -> None:
        if isinstance(value, list) and len(value) == 2:
            for item, to in zip(value, ("adam_beta1", "adam_beta2"), strict=True):
                self._take(f"training.{to}", item, path)
        elif given_value(value):
            self._problem(
                "config.type", f"{path} must be a list of two numbers", path, shown("", value), "[0.9, 0.999]"
            )

    def _scheduler(self) -> Any:
        """The peak learning rate that the schedule sets, or None."""
        block = self._typed("scheduler")
        if block is None:
            return None
        kind, params = block
        name = kind.lower()
        taken = name in SCHEDULES
        if taken:
            self._take("training.lr_scheduler_type", SCHEDULES[name], "scheduler.type")
        elif "training.lr_scheduler_type" in self.given or name in ("auto", ""):
            what = f"the schedule {kind or '(no type)'} is not taken over; training.lr_scheduler_type decides"
            self._note("scheduler.type", what, '"WarmupLR", "WarmupDecayLR" or "WarmupCosineLR"')
        else:
            reason = NO_SCHEDULE.get(name, "DeepSpeed has no such schedule")
            hint = '"WarmupLR", "WarmupDecayLR" or "WarmupCosineLR", or lr_scheduler_type in the YAML'
            self._problem("zero.scheduler", f"the schedule {kind} is not taken: {reason}", "scheduler.type", kind, hint)
        self._warmup(name, params)
        peak = params.get("warmup_max_lr")
        optimizer = self.normal.get("optimizer")
        inside = optimizer.get("params") if isinstance(optimizer, dict) else None
        if taken and given_value(peak) and not (isinstance(inside, dict) and inside.get("lr") == peak):
            self._take("training.learning_rate", peak, "scheduler.params.warmup_max_lr")
            return peak
        return None

    def _warmup(self, name: str, params: dict[str, Any]) -> None:
        steps = params.get("warmup_num_steps", _WARMUP_STEPS if name in SCHEDULES else None)
        self._take("training.warmup_steps", steps, "scheduler.params.warmup_num_steps")
        if given_value(steps) and "warmup_num_steps" not in params:
            self._note(
                "scheduler.params",
                f"without warmup_num_steps DeepSpeed warms up over {_WARMUP_STEPS} steps",
                '"warmup_num_steps": "auto"',
            )
        for key in ("warmup_min_lr", "warmup_min_ratio"):
            if params.get(key) not in (None, "auto", 0, 0.0):
                self._warn(f"scheduler.params.{key}", f"warm-up starts from 0 here, not from {key} {params[key]}")
        if name in SCHEDULES and steps not in (0, None) and str(params.get("warmup_type", "log")) != "linear":
            what = "warm-up is linear here; DeepSpeed's is logarithmic unless warmup_type says linear"
            tell = self._warn if given_value(steps) else self._note
            tell("scheduler.params.warmup_type", what, '"warmup_type": "linear"')
        if given_value(params.get("total_num_steps")):
            what = "the schedule ends with the run's last step (max_steps or num_train_epochs), not at total_num_steps"
            self._warn("scheduler.params.total_num_steps", what, '"auto"')
        ratio = params.get("cos_min_ratio")
        if name == "warmupcosinelr" and isinstance(ratio, (int, float)) and ratio > 0:
            self.found.entries[:] = [e for e in self.found.entries if e.path != "training.lr_scheduler_type"]
            self._take("training.lr_scheduler_type", "cosine_with_min_lr", "scheduler.type")
            self._take("training.lr_scheduler_kwargs", {"min_lr_rate": ratio}, "scheduler.params.cos_min_ratio")

    def _problem(self, code: str, what: str, path: str, found: str, hint: str) -> None:
        self.found.problems.append(Diagnostic(code, what, where=self.document.place(path), found=found, hint=hint))


def given_value(value: Any) -> bool:
    """Whether a value of the JSON says something: null and ``"auto"`` do not."""
    return value is not None and value != "auto"
