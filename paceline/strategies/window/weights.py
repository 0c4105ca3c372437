"""The numbers of a window over all ranks: its weights before the first forward, its means after the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.protocols.algorithm import Objective
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Role
from paceline.protocols.window import SPIKE, StepResult
from paceline.runtime.device.device import sum_dtype
from paceline.runtime.process_group.world import World
from paceline.strategies.model_handle import Handle

Scale = Tensor | float
REFUSED = "refused"  # the number that says whether a ``StepLimit`` refused the step


class WindowWeights:
    """A window's weight by term, and its real tokens; collective: one int64 all-reduce.

    The sums stay on the device: the losses are scaled by them there, and the host gets them with the window's
    results. ``copies``: ranks that read the same rows.
    """

    def __init__(
        self, micro_batches: Sequence[Batch], algorithm: Objective, world: World, copies: int
    ) -> None:
        local: dict[str, int] = {}
        for batch in micro_batches:
            for term, weight in algorithm.weights(batch).items():
                # Integers: their sum over ranks is exact, in any order.
                local[term] = local.get(term, 0) + int(weight)
        self.terms = sorted(local)
        self._copies, self._world = copies, world
        # tokens ride along: one all-reduce for all counts
        self._own = [*(local[t] for t in self.terms), sum(b.num_tokens for b in micro_batches)]
        self._sums: Tensor | None = None
        if world.world_size > 1:
            counts = torch.tensor(self._own, dtype=torch.int64).to(world.device, non_blocking=True)
            self._sums = world.all_reduce_tensor(counts)

    def any(self) -> bool:
        """Whether any rank has something to learn. The host waits for the others only if this one has not."""
        return any(self._own[:-1]) or (self._sums is not None and any(self._sums.tolist()[:-1]))

    def scales(self, factor: float) -> dict[str, Scale]:
        """Return ``factor`` / weight by term, 0 where the weight is: numbers, or tensors on the device."""
        if self._sums is None:
            return {t: factor / w if w else 0.0 for t, w in zip(self.terms, self._own, strict=False)}
        # Without the last entry, the tokens. Each weight was counted by every rank that reads the same
        # rows.
        weights = (self._sums[:-1] // self._copies).to(sum_dtype(self._world.device))
        # not ``factor / weights``, which torch computes as factor times the reciprocal
        quotients = torch.full_like(weights, factor) / weights
        scales = torch.where(weights > 0, quotients, torch.zeros_like(weights))
        return dict(zip(self.terms, scales.unbind(), strict=True))

    def total(self) -> Tensor:
        """Return the weight of all terms, int64, where the sums are."""
        if self._sums is None:
            return torch.tensor(sum(self._own[:-1]))
        return (self._sums[:-1] // self._copies).sum()

    def on_device(self) -> list[Tensor]:
        """Return what has to be copied for ``named``."""
        return [] if self._sums is None else [self._sums]

    def named(self, copied: Sequence[Tensor] | None = None) -> tuple[Mapping[str, int], int]:
        """Return the weights by term and the tokens, from the copies of ``on_device`` (None: waited for)."""
        sums = self.on_device() if copied is None else copied
        counts = [int(n) // self._copies for n in (sums[0].tolist() if sums else self._own)]
        return dict(zip(self.terms, counts[:-1], strict=True)), counts[-1]


def scaled(value: Tensor, scale: Scale) -> Tensor:
    """Return ``value * scale`` in the value's dtype."""
    return value * (scale.to(value.dtype) if isinstance(scale, Tensor) else scale)


@dataclass(frozen=True)
class WindowLosses:
    """The losses of a window: the scale of each term, and sums over its micro-batches so far, by name."""

    algorithm: Objective
    scales: Mapping[str, Scale]
    sums: dict[str, Tensor]

    def add(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Add every term of a micro-batch, and the training metrics, to ``sums``; return the scaled sum of
        all terms, for the backward.
        """
        terms = self.algorithm.losses(role, outputs, batch)
        metrics = self.algorithm.metrics(role, outputs, batch) if self.algorithm.train_metrics else {}
        return self.add_terms(terms, metrics)

    def add_terms(self, terms: Mapping[str, Tensor], metrics: Mapping[str, Tensor]) -> Tensor:
        """As ``add``, for losses and metrics that are known."""
        reported = {name: metrics[name] for name in self.algorithm.train_metrics if name in metrics}
        for name, value in [*terms.items(), *reported.items()]:
            self.sums[name] += value.detach().to(self.sums[name].device)
        return torch.stack([scaled(value, self.scales[term]) for term, value in terms.items()]).sum()


@dataclass
class Means:
    """Sums and weights by name, accumulated over micro-batches; every rank must add the same names."""

    sums: dict[str, float] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)

    def add(self, found: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """Add (sum, weight) by name, scalars, of one micro-batch."""
        for name, (value, weight) in found.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value)
            self.weights[name] = self.weights.get(name, 0) + int(weight)

    def over(
        self,
        add_up: Callable[[list[float]], list[float]],
        count: Callable[[list[int]], list[int]],
        copies: int,
    ) -> dict[str, float]:
        """Return the means by name, equal on every rank; 0 if the weight is 0. Collective.

        ``add_up`` sums floats over all ranks, of which ``copies`` hold the same sum; ``count`` sums ints so
        that each row is counted once.
        """
        names = sorted(self.sums)
        sums = add_up([self.sums[name] for name in names])
        weights = count([self.weights[name] for name in names])
        # A name without weight anywhere has the mean 0, not nan, in the log.
        return {n: s / copies / w if w else 0.0 for n, s, w in zip(names, sums, weights, strict=True)}


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
        # Terms have weights of their own; metrics (``name/term``) share their term's.
        losses = {term: means[term] for term in weights}
        norms = {role: numbers[f"grad_norm/{role.value}"] for role in self.roles}
        # Taken out: they decide the step's outcome, and are no metrics.
        refused = [numbers.pop(name) for name in self.numbers if name.startswith(f"{REFUSED}/")]
        finite = all(map(math.isfinite, [*losses.values(), *norms.values()]))
        train_metrics = algorithm.summary({_metric(name): means[name] for name in algorithm.train_metrics})
        return StepResult(
            losses,
            weights,
            _joint(norms),
            "overflow" if self.scaler and not finite else SPIKE if any(refused) else None,
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

    - ``router_max_load``, ``router_min_load``: the largest and smallest share of a layer's tokens, over all
      layers, times the number of experts (1: all alike)
    - ``router_entropy``: of the shares, over that of equal ones (1), the mean over layers
    - ``router_unused_experts``: how many got no token, over all layers
    """
    layers = [tokens[i : i + experts] for i in range(0, len(tokens), experts)]
    shares = [[count / total for count in layer] for layer in layers if (total := sum(layer))]
    if not shares:
        return {}
    # p log p → 0 for an expert without tokens.
    entropies = [-sum(p * math.log(p) for p in layer if p) / math.log(experts) for layer in shares]
    return {
        "router_max_load": experts * max(max(layer) for layer in shares),
        "router_min_load": experts * min(min(layer) for layer in shares),
        "router_entropy": sum(entropies) / len(entropies),
        "router_unused_experts": float(sum(not p for layer in shares for p in layer)),
    }
