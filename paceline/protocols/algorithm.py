"""The interface between strategies and algorithms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from paceline.protocols.batch import Batch
from paceline.protocols.model import RootModule
from paceline.protocols.roles import Output, Role


@dataclass(frozen=True)
class WindowMeans:
    """Forwards without gradients over a whole window before its first backward, and means of them over all
    documents and ranks, which the losses need.

    roles  the models to run; a role without a model of its own is the policy with its adapter disabled
    rows   what they read: the micro-batches themselves (empty), or those of ``Batch.others`` under this name
    """

    roles: tuple[Role, ...]
    rows: str = ""


class RoleModel(Protocol):
    """The model of a role, trained or frozen, as an algorithm sees it."""

    @property
    def root(self) -> RootModule: ...


class Objective(Protocol):
    """The loss side of an algorithm, as a strategy sees it (contract 2: sums and weights, not means)."""

    trains: tuple[Role, ...]
    frozen: tuple[Role, ...]
    # run before each micro-batch, without gradients; a role without a model: the policy, adapter disabled
    reference_roles: tuple[Role, ...]
    window_means: WindowMeans | None  # run before each window; the means are in ``Batch.extras``
    train_metrics: tuple[str, ...]  # metrics also computed in training; their means are in StepResult.extras

    def required_outputs(self, role: Role, *, training: bool) -> frozenset[Output]:
        """Return the outputs that the root module of ``role`` must compute."""

    def attach_outputs(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Batch:
        """Return ``batch`` with the values of a reference role's ``outputs`` that the losses need."""

    def window_sums(
        self, outputs: Mapping[Role, Mapping[str, Tensor]], batch: Batch
    ) -> Mapping[str, tuple[Tensor, Tensor]]:
        """Return (sum, int64 weight) by name for one micro-batch, from the outputs of the roles of
        ``window_means``.

        The means over the window are put into ``Batch.extras`` under these names.
        """

    def weights(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return an int64 scalar per loss term: its weight in this micro-batch, known before the forward."""

    def losses(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        """Return an fp32 scalar SUM per loss term, with gradient."""

    def metrics(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        """Return sums by name ``metric/term`` (``correct/nll``), in evaluation and, for those in
        ``train_metrics``, in training.

        Each is divided by the weight of its term.
        """

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics to report from the means of ``metrics`` (by name, without the term), such as a
        standard deviation from a mean of squares.
        """
