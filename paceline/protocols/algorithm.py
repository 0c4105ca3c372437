"""What a strategy needs to know of an algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role


@dataclass(frozen=True)
class WindowMeans:
    """Forwards without gradients over a whole window before its first backward: means over all of its documents, on all ranks, that the losses need.

    roles  the models that are asked; one that is not there is the policy with its adapter off
    rows   what they read: the micro-batches themselves (empty), or those of ``Batch.others`` under this name
    """

    roles: tuple[Role, ...]
    rows: str = ""


class Objective(Protocol):
    """The loss side of an algorithm, seen by a strategy (contract 2: sums and weights, not means)."""

    trains: tuple[Role, ...]
    frozen: tuple[Role, ...]
    reference_roles: tuple[
        Role, ...
    ]  # asked before each micro-batch, without gradients; a role without a model of its own: the policy, its adapter off
    window_means: WindowMeans | None  # asked before each window; what came of it is in ``Batch.extras``
    train_metrics: tuple[
        str, ...
    ]  # the metrics that are counted in training too; their means go into StepResult.extras

    def required_outputs(self, role: Role, *, training: bool) -> frozenset[Output]:
        """What the root module of ``role`` must compute."""
        ...

    def attach_outputs(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Batch:
        """``batch`` with what was learnt of a consulted role's ``outputs``."""
        ...

    def window_sums(
        self, outputs: Mapping[Role, Mapping[str, Tensor]], batch: Batch
    ) -> Mapping[str, tuple[Tensor, Tensor]]:
        """(sum, int64 weight) by name of what ``window_means`` asked for, of one micro-batch; the window's means come into ``Batch.extras`` by that name."""
        ...

    def weights(self, batch: Batch) -> Mapping[str, Tensor]:
        """int64 scalar a loss term: its weight in this micro-batch, known before the forward."""
        ...

    def losses(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        """fp32 scalar SUM a loss term, with gradient."""
        ...

    def metrics(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        """Sums by name (``correct``) in evaluation, and of ``train_metrics`` ones in training; each is divided by the weight of the term it belongs to, ``name/term``."""
        ...

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """What is told of the means of ``metrics`` (by name, without the term): a spread from a mean of squares, say."""
        ...
