"""The interface between strategies and algorithms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from paceline.protocols.batch import Batch
from paceline.protocols.model import RootModule
from paceline.protocols.roles import Output, Role


@dataclass(frozen=True)
class WindowMeans:
    """Means over all documents and ranks of a window, which the losses need: from forwards without gradients
    before its first backward.

    roles  the models to run; a role without a model of its own is the policy with its adapter disabled
    rows   their input: the micro-batches themselves (empty), or those of ``Batch.others`` under this name
    """

    roles: tuple[Role, ...]
    rows: str = ""


@dataclass(frozen=True)
class WindowVectors:
    """The vectors of documents that a loss compares.

    vectors  [N, E] of all documents of all ranks and micro-batches of a window, rank by rank
    columns  name -> [N]: the numbers of ``Batch.extras``
    real     bool [N]: False for fillers
    own      bool [N]: this rank's, whose losses it counts
    """

    vectors: Tensor
    columns: Mapping[str, Tensor]
    real: Tensor
    own: Tensor

    @staticmethod
    def alone(vectors: Tensor, batch: Batch) -> WindowVectors:
        """Return the vectors [D, E] of a micro-batch, as if it were the window."""
        device = vectors.device
        columns = {name: values.to(device) for name, values in batch.extras.items() if values.dim() == 1}
        real = (batch.document_ids >= 0).to(device)
        return WindowVectors(vectors, columns, real, torch.ones_like(real))


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
    # what the vectors of ``joint_losses`` are made of; None: losses are a micro-batch's own
    joint: Output | None
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

    def vectors(self, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Return the vector of each document [D, E], fp32 with gradient."""

    def joint_losses(self, window: WindowVectors) -> Mapping[str, Tensor]:
        """Return an fp32 scalar SUM per loss term over this rank's documents, compared with all of a
        window.
        """

    def joint_metrics(self, window: WindowVectors) -> Mapping[str, Tensor]:
        """Return ``metrics`` of this rank's documents among all of a window, or of an evaluation set."""

    def metrics(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        """Return sums by name ``metric/term`` (``correct/nll``), in evaluation and, for those in
        ``train_metrics``, in training.

        Each is divided by the weight of its term.
        """

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics to report from the means of ``metrics`` (by name, without the term), such as a
        standard deviation from a mean of squares.
        """
