"""OptimizerSpec → torch optimizer, by Transformers' ``optim`` names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import torch
from torch import nn

from paceline.config.registries.optimizers import BUILT, not_built
from paceline.config.registries.options import misfits
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject
from paceline.core.plugins.tables import load_attr
from paceline.plan.hardware.device_kinds import CUDA
from paceline.plan.model.family import in_part
from paceline.plan.model.parameter_list import MAGNITUDE, NO_DECAY, orthogonalised, projected
from paceline.plan.plan import OptimizerSpec
from paceline.strategies import codes
from paceline.strategies.optimizers.adam_mini import BLOCK, block_of
from paceline.strategies.optimizers.galore_adamw import PROJECTED
from paceline.strategies.optimizers.muon import ORTHOGONAL
from paceline.strategies.optimizers.schedule_free import averages

if TYPE_CHECKING:
    from paceline.strategies.fsdp.state import Block

RATIO = "rate_ratio"  # of a group's rate to the run's
Group = dict[str, list[nn.Parameter] | float | str]


@dataclass(frozen=True)
class OptimizerRecipe:
    """The arguments of an optimizer: ``cls(groups, **kwargs)``."""

    cls: type[torch.optim.Optimizer]
    groups: list[Group]
    kwargs: Mapping[str, Any]


@runtime_checkable
class KnowsBlocks(Protocol):
    """An optimizer whose step depends on where a rank's shards lie in their whole tensors."""

    def take_blocks(self, blocks: Iterable[Block]) -> None:
        """Record the shards."""


def build_optimizer(
    spec: OptimizerSpec, named: Iterable[tuple[str, nn.Parameter]], blocks: Iterable[Block] = ()
) -> torch.optim.Optimizer:
    """Return the optimizer over the parameters that require grad. Raises as ``recipe_of``.

    ``blocks``: what of each parameter this rank has, where it is not the whole.
    """
    recipe = recipe_of(spec, named)
    optimizer = recipe.cls(recipe.groups, **recipe.kwargs)
    if isinstance(optimizer, KnowsBlocks):
        optimizer.take_blocks(blocks)
    if averages(optimizer):
        optimizer.train()  # the weights in place are those that it steps
    return optimizer


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the rate of every group, times its own ratio.

    torchao keeps it in a tensor, which its compiled step reads.
    """
    for group in optimizer.param_groups:
        rate = lr * float(group.get(RATIO, 1.0))
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def recipe_of(spec: OptimizerSpec, named: Iterable[tuple[str, nn.Parameter]]) -> OptimizerRecipe:
    """Return class, parameter groups and arguments: a group with weight decay (matrices) and one without
    (biases, norms), before them the matrices that Muon steps.

    Raises ConfigError: ``strategy.optimizer_unsupported``, ``strategy.optimizer_args``,
    ``strategy.nothing_to_train``.
    """
    trained = trained_parameters(named)
    if spec.name not in BUILT:
        raise _refusal(spec.name)
    entry = BUILT[spec.name]
    cls = load_attr(entry.made_by)
    rate: float | torch.Tensor = spec.learning_rate
    if entry.compiles:
        # A tensor, so that a new rate does not recompile the step.
        rate = torch.tensor(rate, dtype=torch.float32)
        # torchao compiles its step; see ``_eager``.
        cls = cls if trained[0][1].device.type == CUDA.name else _eager(cls)
    # others use torch's defaults, as transformers.Trainer does
    of_config: JsonObject = {n: getattr(spec, n) for n in ("betas", "eps") if n in entry.takes}
    kwargs = {"lr": rate, **of_config, **entry.fixed, **_checked_args(spec)}
    return OptimizerRecipe(cls, _groups(spec, trained), kwargs)


def _groups(spec: OptimizerSpec, trained: list[tuple[str, nn.Parameter]]) -> list[Group]:
    """Return the groups that are not empty: Muon's or GaLore's matrices, others with and without decay."""
    entry = BUILT[spec.name]
    if entry.by_blocks:
        return _of_blocks(spec, trained)
    # By identity: tensors compare elementwise, so ``in`` on a list of them would fail.
    apart = {
        id(p)
        for name, p in trained
        if (entry.orthogonalises and orthogonalised(name, p.ndim))
        or (entry.projects and projected(name, p.ndim, spec.target_modules))
    }
    if entry.projects and spec.target_modules and not apart:  # the sizes were unknown to the plan
        text, modules = f"{spec.name} finds no matrix in these modules", ", ".join(spec.target_modules)
        where, remedy = "training.optim_target_modules", "parts of names such as attn, mlp or q_proj"
        raise ConfigError(codes.STRATEGY_OPTIMIZER_ARGS(text, where, modules, remedy))
    others = [(name, p) for name, p in trained if id(p) not in apart]
    groups: list[Group] = [
        {
            "params": [p for _, p in trained if id(p) in apart],
            "weight_decay": spec.weight_decay,
            ORTHOGONAL if entry.orthogonalises else PROJECTED: True,
        },
        {"params": [p for name, p in others if decays(name, p)], "weight_decay": spec.weight_decay},
        {"params": [p for name, p in others if not decays(name, p)], "weight_decay": 0.0},
    ]
    return [part for group in groups for part in _by_rate(spec, trained, group)]


def _of_blocks(spec: OptimizerSpec, trained: list[tuple[str, nn.Parameter]]) -> list[Group]:
    """Return Adam-mini's groups: by what shares a second moment, and by decay."""
    members: dict[tuple[str, bool], list[nn.Parameter]] = {}
    for name, parameter in trained:
        members.setdefault((block_of(name), decays(name, parameter)), []).append(parameter)
    groups: list[Group] = [
        {"params": parameters, "weight_decay": spec.weight_decay * decay, BLOCK: block}
        for (block, decay), parameters in members.items()
    ]
    return [part for group in groups for part in _by_rate(spec, trained, group)]


def _by_rate(spec: OptimizerSpec, trained: list[tuple[str, nn.Parameter]], group: Group) -> list[Group]:
    """Return the group as one group for each rate (``_ratio``)."""
    ratios = {id(p): _ratio(spec, name, p) for name, p in trained}
    parts: dict[float, list[nn.Parameter]] = {1.0: []}
    for parameter in cast("list[nn.Parameter]", group["params"]):
        parts.setdefault(ratios[id(parameter)], []).append(parameter)
    rates = {ratio: {"lr": spec.learning_rate * ratio, RATIO: ratio} for ratio in parts if ratio != 1.0}
    return [
        {**group, "params": members, **rates.get(ratio, {})} for ratio, members in parts.items() if members
    ]


def _ratio(spec: OptimizerSpec, name: str, parameter: nn.Parameter) -> float:
    """Return a parameter's rate over the run's: that of its part of the model, times LoRA+'s.

    LoRA+ (Hayou et al. 2024, arXiv:2402.12354) is, as in peft, for adapters' B and vectors.
    """
    part = spec.rate_ratios.get(in_part(name, spec.rate_ratios), 1.0)
    return part * spec.b_rate_ratio if ".lora_B." in name or parameter.ndim == 1 else part


def _eager(cls: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Return a subclass whose step is not compiled: on a CPU compiling takes far longer than it saves."""

    class Eager(cls):  # type: ignore[valid-type, misc]
        def step(self, closure: Callable[[], float] | None = None) -> float | None:
            # Only around the step: layers of the model stay compiled.
            with torch.compiler.set_stance("force_eager"):
                return super().step(closure)

    return Eager


def trained_parameters(named: Iterable[tuple[str, nn.Parameter]]) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters that require grad. Raises ConfigError ``strategy.nothing_to_train`` if there are
    none.
    """
    trained = [(name, p) for name, p in named if p.requires_grad]
    if not trained:
        raise ConfigError(codes.STRATEGY_NOTHING_TO_TRAIN())
    return trained


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Return whether weight decay applies: to matrices and DoRA's lengths, but not to biases, norm weights
    and other 1-D parameters (as ``transformers.Trainer``).
    """
    return (parameter.ndim >= 2 or name.endswith(MAGNITUDE)) and NO_DECAY.search(name) is None


def _checked_args(spec: OptimizerSpec) -> JsonObject:
    for reason, found, remedy in misfits(spec.args, BUILT[spec.name].options):
        raise ConfigError(
            codes.STRATEGY_OPTIMIZER_ARGS(f"{spec.name} {reason}", "training.optim_args", found, remedy)
        )
    return {name: _value(value) for name, value in spec.args.items() if value is not None}


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
    return ConfigError(
        codes.STRATEGY_OPTIMIZER_UNSUPPORTED("training.optim", name, name=name, why=why, hint=instead)
    )
