"""What a strategy needs to know of an algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from paceline.protocols.batch import Batch
from paceline.protocols.roles import Ask, Role


class Objective(Protocol):
    """The loss side of an algorithm, seen by a strategy (contract 2: sums and weights, not means)."""

    trains: tuple[Role, ...]
    frozen: tuple[Role, ...]
    consulted: tuple[
        Role, ...
    ]  # asked before each micro-batch, without gradients; a role without a model of its own: the policy, its adapter off
    watched: tuple[str, ...]  # the metrics that are counted in training too; their means go into StepResult.extras

    def ask(self, role: Role, *, training: bool) -> frozenset[Ask]:
        """What the root module of ``role`` must compute."""
        ...

    def informed(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Batch:
        """``batch`` with what was learnt of a consulted role's ``outputs``."""
        ...

    def weights(self, batch: Batch) -> Mapping[str, Tensor]:
        """int64 scalar a loss term: its weight in this micro-batch, known before the forward."""
        ...

    def losses(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        """fp32 scalar SUM a loss term, with gradient."""
        ...

    def metrics(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        """Sums by name (``correct``) in evaluation, and of ``watched`` ones in training; each is divided by the weight of the term it belongs to, ``name/term``."""
        ...

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """What is told of the means of ``metrics`` (by name, without the term): a spread from a mean of squares, say."""
        ...
