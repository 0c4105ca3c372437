"""A mixture's experts over a tp group: each rank holds some of them whole.

Transformers' plans cut every expert by columns. Gate and up lie in one tensor there, so that blocks of it
would not be columns of both; whole experts are contiguous blocks, which FSDP2, optimizers and checkpoints
take as any other, and every rank computes the same share of the tokens' products on average. Routers stay
whole on every rank.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

from torch import Tensor, nn

from paceline.models.lora.expert_lora import Experts
from paceline.models.low_precision.own_forward_modules import own_class
from paceline.models.parallel.tensor_parallel_layers import Forward, Tensors, local_parameters, own_forward
from paceline.models.parallel.tp_regions import copy_to_tp, reduce_from_tp

EXPERTS = "moe_tp_experts"
_ARGUMENTS = ("hidden_states", "top_k_index", "top_k_weights")


def without_parts(plan: Mapping[str, str]) -> dict[str, str]:
    """Return a family's plan without what it says of the experts' own tensors, which are shared whole."""
    experts = tuple(f"{pattern}." for pattern, style in plan.items() if style == EXPERTS)
    return {pattern: style for pattern, style in plan.items() if not pattern.startswith(experts)}


def why_not(module: nn.Module, size: int) -> str:
    """Return why a module of experts cannot be shared over ``size`` ranks; empty if it can."""
    kind = own_class(module)
    named = tuple(inspect.signature(inspect.unwrap(kind.forward)).parameters)[1:4]
    if not hasattr(kind, "_apply_gate") or named != _ARGUMENTS:
        return f"{kind.__name__} does not take the experts of each token"
    count = cast(Experts, module).num_experts
    held = list(module.parameters())
    if not held or len(held) != len(module._parameters) or any(p.shape[0] != count for p in held):
        return f"{kind.__name__} has parameters that are not the experts'"
    return f"{count} experts cannot be split into {size} equal parts" if count % size else ""


@contextmanager
def _counting(module: nn.Module, mine: int) -> Iterator[None]:
    """Inside the context the module has ``mine`` experts; outside its routers are counted over all."""
    count = vars(module)["num_experts"]
    vars(module)["num_experts"] = mine
    try:
        yield
    finally:
        vars(module)["num_experts"] = count


def some_experts(module: nn.Module, tensors: Tensors) -> Forward:
    """Forward of this rank's experts: replicated hidden states, choices and weights of all tokens; the sum
    over the group is every expert's.
    """
    forward, layer, group = own_forward(module), cast(Experts, module), tensors.group
    mine = layer.num_experts // group.size()
    first = group.rank() * mine
    vars(module)["_is_expert_parallel"] = True  # then Transformers skips tokens of experts beyond the last

    def run(hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        hidden, weights = (copy_to_tp(x, group) for x in (hidden_states, top_k_weights))
        own = top_k_index - first
        others = (own < 0) | (own >= mine)
        with local_parameters(module, group), _counting(module, mine):
            out: Tensor = forward(hidden, own.masked_fill(others, mine), weights.masked_fill(others, 0.0))
        return reduce_from_tp(out, group)

    return run
