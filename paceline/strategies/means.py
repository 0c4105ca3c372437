"""Means over the documents of all micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Means:
    """Sums and weights by name, gathered micro-batch by micro-batch; every rank adds the same names."""

    sums: dict[str, float] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)

    def add(self, found: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """(sum, weight) by name, scalars, of one micro-batch."""
        for name, (value, weight) in found.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value)
            self.weights[name] = self.weights.get(name, 0) + int(weight)

    def over(
        self, add_up: Callable[[list[float]], list[float]], count: Callable[[list[int]], list[int]], copies: int
    ) -> dict[str, float]:
        """The means by name, equal on every rank; ``copies`` ranks hold the same sum, ``count`` counts each row once. 0 where nothing weighs. Collective."""
        names = sorted(self.sums)
        sums = add_up([self.sums[name] for name in names])
        weights = count([self.weights[name] for name in names])
        return {n: s / copies / w if w else 0.0 for n, s, w in zip(names, sums, weights, strict=True)}
