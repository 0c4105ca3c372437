"""OptimizerSpec → torch optimizer, by Transformers' ``optim`` names."""

from __future__ import annotations

import difflib
import inspect
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.plan.parameters import NO_DECAY
from paceline.seam.optimizer import OptimizerSpec


def _adamw(fused: bool | None) -> Callable[[OptimizerSpec], dict[str, Any]]:
    return lambda spec: {"betas": spec.betas, "eps": spec.eps, **({"fused": fused} if fused is not None else {})}


def _plain(spec: OptimizerSpec) -> dict[str, Any]:
    """As ``transformers.Trainer``: these take no betas and keep torch's own defaults, but for ``optim_args``."""
    return {}


def _adafactor(spec: OptimizerSpec) -> dict[str, Any]:
    return {"scale_parameter": False, "relative_step": False}


# name -> (the optimizer class as "torch.optim attribute", keyword arguments from the spec)
_BUILT: dict[str, tuple[str, Callable[[OptimizerSpec], dict[str, Any]]]] = {
    "adamw_torch": ("AdamW", _adamw(None)),
    "adamw_torch_fused": ("AdamW", _adamw(True)),
    "sgd": ("SGD", _plain),
    "adagrad": ("Adagrad", _plain),
    "rmsprop": ("RMSprop", _plain),
    "adafactor": ("transformers", _adafactor),
}
_REASONS = {
    r"8bit|4bit|32bit|bnb|paged|lion": "it needs bitsandbytes' or torchao's quantized states, which come with the strategies that shard",
    r"galore|apollo|lomo|schedule_free|grokadamw|stable_adamw|ademamix": "it needs a package of its own that Paceline does not use",
    r"xla|npu": "it is for another kind of device",
    r"anyprecision": "it needs torchdistx, which is no longer maintained",
}


def supported_optimizers() -> tuple[str, ...]:
    """The names that work."""
    return tuple(_BUILT)


def build_optimizer(spec: OptimizerSpec, named: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """The optimizer over the parameters that require grad, in two groups: with weight decay (matrices) and without (biases, norms).

    Raises ConfigError: ``strategy.optimizer_unknown``, ``strategy.optimizer_unsupported``, ``strategy.optimizer_args``, ``strategy.nothing_to_train``.
    """
    trained = [(name, p) for name, p in named if p.requires_grad]
    if not trained:
        raise ConfigError(
            Diagnostic(
                "strategy.nothing_to_train",
                "no parameter of the model requires a gradient",
                hint="unfreeze at least one",
            )
        )
    if spec.name not in _BUILT:
        raise _refusal(spec.name)
    target, arguments = _BUILT[spec.name]
    cls = _adafactor_class() if target == "transformers" else getattr(torch.optim, target)
    kwargs = {**arguments(spec), **_checked_args(spec, cls)}
    decay = [p for name, p in trained if decays(name, p)]
    rest = [p for name, p in trained if not decays(name, p)]
    groups = [{"params": decay, "weight_decay": spec.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return cls([g for g in groups if g["params"]], lr=spec.learning_rate, **kwargs)


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Whether weight decay applies: matrices do; biases, norm weights and anything of one dim do not (as ``transformers.Trainer``)."""
    return parameter.ndim >= 2 and NO_DECAY.search(name) is None


def _checked_args(spec: OptimizerSpec, cls: type) -> dict[str, Any]:
    known = set(inspect.signature(cls).parameters) - {"params", "lr", "weight_decay"}
    for name in spec.args:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(
                Diagnostic(
                    "strategy.optimizer_args",
                    f"{spec.name} takes no argument '{name}'",
                    where="training.optim_args",
                    found=name,
                    hint=near[0] if near else ", ".join(sorted(known)),
                )
            )
    return {name: _value(value) for name, value in spec.args.items()}


def _value(value: Any) -> Any:
    """``optim_args`` may arrive as text (``amsgrad=true``): numbers and booleans are read as such."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value.lower() if value in ("True", "False") else value)
    except ValueError:
        return value


def _adafactor_class() -> Any:
    from transformers.optimization import Adafactor

    return Adafactor


def _refusal(name: str) -> ConfigError:
    for pattern, reason in _REASONS.items():
        if re.search(pattern, name):
            return ConfigError(
                Diagnostic(
                    "strategy.optimizer_unsupported",
                    f"the optimizer '{name}' is not available: {reason}",
                    where="training.optim",
                    found=name,
                    hint=f"one of: {', '.join(_BUILT)}",
                )
            )
    near = difflib.get_close_matches(name, _BUILT, n=1)
    hint = f"did you mean '{near[0]}'? known: {', '.join(_BUILT)}" if near else f"one of: {', '.join(_BUILT)}"
    return ConfigError(
        Diagnostic(
            "strategy.optimizer_unknown",
            f"no optimizer is called '{name}'",
            where="training.optim",
            found=name,
            hint=hint,
        )
    )
