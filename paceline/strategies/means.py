"""Means over the documents of all micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor


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
        return {n: s / copies / w if w else 0.0 for n, s, w in zip(names, sums, weights, strict=True)}
