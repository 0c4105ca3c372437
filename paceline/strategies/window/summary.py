"""What the numbers of a window mean that the ranks have summed: losses, norms, metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from paceline.protocols.algorithm import Objective
from paceline.protocols.roles import Role
from paceline.protocols.window import StepResult
from paceline.strategies.model_handle import Handle


@dataclass(frozen=True)
class WindowSummary:
    """The order of a window's reduced numbers: ``sums`` by loss term and metric (``name/term``), ``numbers``
    of the steps of the models of ``roles`` (rank 0's), tokens by layer of ``experts`` (0: none).

    ``scaler``: fp16 gradients are scaled, so that a number that is not finite skips the step; ``copies``:
    ranks that have summed the same losses.
    """

    sums: Sequence[str]
    numbers: Sequence[str]
    roles: Sequence[Role]
    experts: int
    scaler: bool
    copies: int

    def of(
        self, reduced: Sequence[float], weights: Mapping[str, int], tokens: int, algorithm: Objective
    ) -> StepResult:
        """Return the result; equal on every rank."""
        count = len(self.sums) + len(self.numbers)
        over = [weights[name.rpartition("/")[2]] for name in self.sums]
        means = {
            name: reduced[i] / self.copies / over[i] if over[i] else 0.0 for i, name in enumerate(self.sums)
        }
        numbers = dict(zip(self.numbers, reduced[len(self.sums) : count], strict=True))
        spread = spread_of(reduced[count:], self.experts) if self.experts else {}
        losses = {term: means[term] for term in weights}
        norms = {role: numbers[f"grad_norm/{role.value}"] for role in self.roles}
        finite = all(map(math.isfinite, [*losses.values(), *norms.values()]))
        train_metrics = algorithm.summary({_metric(name): means[name] for name in algorithm.train_metrics})
        return StepResult(
            losses,
            weights,
            _joint(norms),
            "overflow" if self.scaler and not finite else None,
            tokens,
            {**_extras(numbers, alone=len(self.roles) == 1), **train_metrics, **spread},
        )


def _extras(numbers: Mapping[str, float], *, alone: bool) -> dict[str, float]:
    """Return ``StepResult.extras``: loss scales and norms by role; for a single model its loss scale only."""
    if not alone:
        return dict(numbers)
    return {
        name.partition("/")[0]: value for name, value in numbers.items() if name.startswith("loss_scale/")
    }


def _metric(name: str) -> str:
    return name.rpartition("/")[0]


def _joint(norms: Mapping[Role, float]) -> float:
    """Return one number for the log: the norm over all roles."""
    values = list(norms.values())
    return values[0] if len(values) == 1 else math.sqrt(sum(v * v for v in values))


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
