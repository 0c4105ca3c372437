"""OptimizerSpec → torch optimizer, by Transformers' ``optim`` names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from paceline.config.optimizers import BUILT, not_built
from paceline.config.options import misfits
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject
from paceline.core.registry import load_attr
from paceline.plan.model.parameters import NO_DECAY
from paceline.protocols.optimizer import OptimizerSpec
from paceline.strategies import codes


@dataclass(frozen=True)
class Recipe:
    """The arguments of an optimizer: ``cls(groups, **kwargs)``."""

    cls: type[torch.optim.Optimizer]
    groups: list[dict[str, list[nn.Parameter] | float]]
    kwargs: Mapping[str, Any]


def build_optimizer(spec: OptimizerSpec, named: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """Return the optimizer over the parameters that require grad. Raises as ``recipe_of``."""
    recipe = recipe_of(spec, named)
    return recipe.cls(recipe.groups, **recipe.kwargs)


def recipe_of(spec: OptimizerSpec, named: Iterable[tuple[str, nn.Parameter]]) -> Recipe:
    """Return class, parameter groups and arguments: one group with weight decay (matrices) and one without
    (biases, norms).

    Raises ConfigError: ``strategy.optimizer_unsupported``, ``strategy.optimizer_args``,
    ``strategy.nothing_to_train``.
    """
    trained = trained_parameters(named)
    if spec.name not in BUILT:
        raise _refusal(spec.name)
    known = BUILT[spec.name]
    cls = load_attr(known.made_by)
    # others use torch's defaults, as transformers.Trainer does
    of_config = {"betas": spec.betas, "eps": spec.eps} if known.adam else {}
    kwargs = {"lr": spec.learning_rate, **of_config, **known.fixed, **_checked_args(spec)}
    decay = [p for name, p in trained if decays(name, p)]
    rest = [p for name, p in trained if not decays(name, p)]
    groups: list[dict[str, list[nn.Parameter] | float]] = [
        {"params": decay, "weight_decay": spec.weight_decay},
        {"params": rest, "weight_decay": 0.0},
    ]
    return Recipe(cls, [g for g in groups if g["params"]], kwargs)


def trained_parameters(named: Iterable[tuple[str, nn.Parameter]]) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters that require grad. Raises ConfigError ``strategy.nothing_to_train`` if there are
    none.
    """
    trained = [(name, p) for name, p in named if p.requires_grad]
    if not trained:
        what = "no parameter of the model requires a gradient"
        raise ConfigError(codes.STRATEGY_NOTHING_TO_TRAIN(what, hint="unfreeze at least one"))
    return trained


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Return whether weight decay applies: to matrices, but not to biases, norm weights and 1-D parameters
    (as ``transformers.Trainer``).
    """
    return parameter.ndim >= 2 and NO_DECAY.search(name) is None


def _checked_args(spec: OptimizerSpec) -> JsonObject:
    for what, found, hint in misfits(spec.args, BUILT[spec.name].options):
        text = f"{spec.name} {what}"
        raise ConfigError(codes.STRATEGY_OPTIMIZER_ARGS(text, "training.optim_args", found, hint))
    return {name: _value(value) for name, value in spec.args.items()}


def _value(value: Json) -> Json:
    """Parse a value of ``optim_args`` given as text (``amsgrad=true``): numbers and booleans."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value.lower() if value in ("True", "False") else value)
    except ValueError:
        return value


def _refusal(name: str) -> ConfigError:
    why, instead = not_built(name)
    what = f"the optimizer '{name}' is not supported: {why}"
    return ConfigError(codes.STRATEGY_OPTIMIZER_UNSUPPORTED(what, "training.optim", name, instead))
