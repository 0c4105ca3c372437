"""LoRA on layers that are sharded over a tp group: y = x Wᵀ + scale · drop(x) Aᵀ Bᵀ by shards of W, A and B.

In a column-parallel layer, W and B are cut along the outputs and A is whole. In a row-parallel one, W and A
are cut along the inputs and B is whole, so adapter and layer share one sum over the group. The whole factor
sees only a rank's share of the outputs or inputs, so its gradient is summed over the group.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor, nn
from torch.nn import functional as F

from paceline.models.lora.names import NAME
from paceline.models.parallel import tensor_parallel_layers
from paceline.models.parallel.tensor_parallel_layers import Forward, TensorParallelGroup
from paceline.models.parallel.tp_regions import Group, block_of

if TYPE_CHECKING:
    from peft.tuners.lora import Linear

_NUMBER = re.compile(r"\.\d+(?=\.|$)")
Take = Callable[[nn.Module, str, int | None, str], None]


def is_adapted(module: nn.Module) -> TypeGuard[Linear]:
    """Return whether ``module`` is peft's wrapper of one linear layer."""
    return hasattr(module, "lora_A") and isinstance(getattr(module, "base_layer", None), nn.Linear)


def inside(layer: Linear) -> list[nn.Module]:
    """Return the modules with parameters that an adapted layer holds: the layer itself, A and B."""
    return [layer.base_layer, *layer.lora_A.values(), *layer.lora_B.values()]


def share_factors(layer: Linear, name: str, dim: int, take: Take) -> None:
    """Make A and B DTensors; the factor with the layer's cut dim (0: outputs, 1: inputs) is cut too."""
    for factors, cut in ((layer.lora_A, 1), (layer.lora_B, 0)):
        for factor in factors.values():
            take(factor, "weight", cut if cut == dim else None, f"{name}.lora_{'BA'[cut]}")


def colwise(layer: Linear, tensors: TensorParallelGroup, *, gathers: bool) -> dict[nn.Module, Forward]:
    """Return the forwards of an adapted column-parallel layer and of the modules inside it."""
    cut = {
        m: tensor_parallel_layers.colwise(m, tensors, gathers=False)
        for m in (layer.base_layer, *layer.lora_B.values())
    }
    return {
        layer: tensor_parallel_layers.colwise(layer, tensors, gathers=gathers),
        **cut,
        **{a: _partial(a, tensors) for a in layer.lora_A.values()},
    }


def rowwise(layer: Linear, tensors: TensorParallelGroup, *, splits: bool) -> dict[nn.Module, Forward]:
    """Return the forwards of an adapted row-parallel layer and of the modules inside it."""
    return {
        layer: tensor_parallel_layers.rowwise(layer, tensors, splits=splits, linear=layer.base_layer),
        **{a: tensor_parallel_layers.colwise(a, tensors, gathers=False) for a in layer.lora_A.values()},
        **{b: _partial(b, tensors) for b in layer.lora_B.values()},
        **share_dropout(layer, lambda: tensors.group),
    }


def own_heads(layer: Linear, tensors: TensorParallelGroup) -> dict[nn.Module, Forward]:
    """Return the forwards inside an adapted layer that is whole on every rank, for the rank's own heads."""
    return {module: _partial(module, tensors) for module in inside(layer)}


def _partial(module: nn.Module, tensors: TensorParallelGroup) -> Forward:
    return tensor_parallel_layers.whole(module, tensors, partial=True, inside_cut=False)


def share_dropout(layer: Linear, group: Callable[[], Group]) -> dict[nn.Module, Forward]:
    """Return the forwards of a row-parallel layer's dropout. A rank applies its block of the mask that one
    process would draw for all input features.
    """

    def forward(module: nn.Dropout) -> Forward:
        def run(x: Tensor) -> Tensor:
            if not module.training:
                return x
            mask = F.dropout(x.new_ones(*x.shape[:-1], x.shape[-1] * group().size()), module.p)
            return x * block_of(mask, group(), -1)

        return run

    return {d: forward(d) for d in layer.lora_dropout.values() if isinstance(d, nn.Dropout)}


def adapted_plan(trunk: nn.Module, plan: Mapping[str, str]) -> dict[str, str]:
    """Return a plan for an engine that identifies layers by name. For a layer with an adapter the plan lists
    the modules inside, not peft's wrapper, which the engine would treat as a linear layer.
    """
    adapted: dict[str, list[str]] = {}
    plain: dict[str, list[str]] = {}
    for name, module in trunk.named_modules():
        if (pattern := _NUMBER.sub(".*", name)) in plan:
            (adapted if is_adapted(module) else plain).setdefault(pattern, []).append(name)
    styles: dict[str, str] = {}
    for pattern, style in plan.items():
        mixed = pattern in adapted and pattern in plain
        styles |= dict.fromkeys(plain[pattern] if mixed else () if pattern in adapted else (pattern,), style)
        for layer in adapted[pattern] if mixed else (pattern,) if pattern in adapted else ():
            factor = {"colwise": "lora_B", "rowwise": "lora_A"}.get(style.partition("_")[0])
            styles |= dict.fromkeys(
                (f"{layer}.base_layer", *([f"{layer}.{factor}.{NAME}"] if factor else ())), style
            )
    return styles
