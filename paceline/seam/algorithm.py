"""What a strategy needs to know of an algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from paceline.seam.batch import Batch
from paceline.seam.roles import Ask, Role


class Objective(Protocol):
    """The loss side of an algorithm, seen by a strategy (contract 2: sums and weights, not means)."""

    trains: tuple[Role, ...]
    frozen: tuple[Role, ...]

    def ask(self, role: Role, *, training: bool) -> frozenset[Ask]:
        """What the root module of ``role`` must compute."""
        ...

    def weights(self, batch: Batch) -> Mapping[str, Tensor]:
        """int64 scalar a loss term: its weight in this micro-batch, known before the forward."""
        ...

    def losses(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        """fp32 scalar SUM a loss term, with gradient."""
        ...

    def metrics(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        """Evaluation sums by name (``correct``); each is divided by the weight of the term it belongs to, ``name/term``."""
        ...
