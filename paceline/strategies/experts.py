"""Metrics of a mixture: how the tokens of a window spread over its experts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from paceline.strategies.handle import Handle


def tokens_by_expert(handle: Handle) -> Tensor | None:
    """Return the tokens of each expert since the last call, int64 [layers, experts], of all replicas here;
    None for a model without experts.
    """
    counts = [counted for root in handle.roots if (counted := root.expert_tokens()) is not None]
    first = counts[0].device if counts else None
    return sum((counted.to(first) for counted in counts[1:]), counts[0]) if counts else None


def spread_of(tokens: Sequence[float], experts: int) -> dict[str, float]:
    """Return the metrics of ``tokens`` by layer and expert, end to end.

    ``router_max_load``, ``router_min_load``: the largest and smallest share of a layer's tokens, over all
    layers, times the number of experts (1: all alike); ``router_entropy``: of the shares, over that of equal
    ones (1), the mean over layers; ``router_unused_experts``: how many got no token, over all layers.
    """
    layers = [tokens[i : i + experts] for i in range(0, len(tokens), experts)]
    shares = [[count / total for count in layer] for layer in layers if (total := sum(layer))]
    if not shares:
        return {}
    entropies = [-sum(p * math.log(p) for p in layer if p) / math.log(experts) for layer in shares]
    return {
        "router_max_load": experts * max(max(layer) for layer in shares),
        "router_min_load": experts * min(min(layer) for layer in shares),
        "router_entropy": sum(entropies) / len(entropies),
        "router_unused_experts": float(sum(not p for layer in shares for p in layer)),
    }
