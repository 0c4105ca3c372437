"""The weight of a window over all ranks: asked for before its first forward, read after its step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.protocols.algorithm import Objective
from paceline.protocols.batch import Batch
from paceline.runtime.device.device import sum_dtype
from paceline.runtime.process_group.world import World

Scale = Tensor | float


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
                local[term] = local.get(term, 0) + int(weight)
        self.terms = sorted(local)
        self._copies, self._world = copies, world
        self._own = [*(local[t] for t in self.terms), sum(b.num_tokens for b in micro_batches)]
        self._sums: Tensor | None = None
        if world.world_size > 1:
            own = torch.tensor(self._own, dtype=torch.int64).to(world.device, non_blocking=True)
            self._sums = world.all_reduce_tensor(own)

    def any(self) -> bool:
        """Whether any rank has something to learn. The host waits for the others only if this one has not."""
        return any(self._own[:-1]) or (self._sums is not None and any(self._sums.tolist()[:-1]))

    def scales(self, factor: float) -> dict[str, Scale]:
        """Return ``factor`` / weight by term, 0 where the weight is: numbers, or tensors on the device."""
        if self._sums is None:
            return {t: factor / w if w else 0.0 for t, w in zip(self.terms, self._own, strict=False)}
        weights = (self._sums[:-1] // self._copies).to(sum_dtype(self._world.device))
        # not ``factor / weights``, which torch computes as factor times the reciprocal
        quotients = torch.full_like(weights, factor) / weights
        scales = torch.where(weights > 0, quotients, torch.zeros_like(weights))
        return dict(zip(self.terms, scales.unbind(), strict=True))

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
