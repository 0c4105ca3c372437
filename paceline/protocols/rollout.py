"""The interface between rollouts and on-policy algorithms, which train on the policy's own answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from paceline.core.errors import PacelineError
from paceline.protocols.algorithm import Objective
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role

Sum = Callable[[Sequence[float]], list[float]]  # summed over data-parallel ranks; equal on every rank


class RolloutInterrupted(PacelineError):
    """A rollout failed. Every rank raises it, between two steps, so the trained state can be saved."""


@dataclass(frozen=True)
class PrecomputedField:
    """A forward without gradients over a rollout's micro-batches: ``output`` of ``role``, stored as the field
    ``name`` of ``Batch.tokens``.

    ``known``: a field that already holds the same values if sampling computes exactly as training does;
    empty: none.
    """

    name: str
    role: Role
    output: Output
    known: str = ""


@dataclass(frozen=True)
class RolloutAnswers:
    """All R answers of a rollout, equal on every rank, and the indices of this rank's among them.

    advantages  float64 [R], result of ``compute_advantages``
    groups      int64 [R], index of each answer's prompt
    is_scored   bool [R], whether it has a score and is trained on (possibly with no token that has a loss)
    places      int64 [D] per micro-batch of this rank, in order: the index of each document among the R
    total       sums numbers over the ranks
    """

    advantages: Tensor
    groups: Tensor
    is_scored: Tensor
    places: Sequence[Tensor]
    total: Sum

    def everyones(self, of_rank: Sequence[Tensor]) -> Tensor:
        """Return float64 [R]: one number per answer, from the numbers of this rank's documents (``of_rank``:
        [D] per micro-batch). Collective.
        """
        table = torch.zeros(len(self.groups), dtype=torch.float64)
        for where, values in zip(self.places, of_rank, strict=True):
            table[where] = values.detach().cpu().double()
        return torch.tensor(self.total(table.tolist()), dtype=torch.float64)


class OnPolicyObjective(Objective, Protocol):
    """The loss side of an algorithm whose windows are rollouts.

    In a rollout ``Batch.tokens`` holds ``fields()``: ``sampled`` (log-probability at sampling),
    ``advantage``, the fields of ``precomputed_fields`` and what ``finalize_rollout`` adds. ``Batch.extras``
    holds ``is_scored`` (1 for an answer with a score, 0 for fillers and answers left out).
    """

    passes: int  # over each rollout
    updates_per_rollout: int  # optimizer steps
    uses_group_baseline: bool  # advantages are relative to the other answers to the prompt
    masks_truncated: bool  # tokens of a truncated answer have no loss
    learns_kl: bool  # a KL to the reference is learnt beside the rewards
    scales_kl: bool  # … in advantages that are divided by their standard deviation

    def precomputed_fields(self) -> Sequence[PrecomputedField]:
        """Return the forwards that a rollout needs before its first step."""

    def fields(self) -> tuple[str, ...]:
        """Return the names of ``Batch.tokens`` in a rollout."""

    def compute_advantages(self, scores: Tensor, groups: Tensor, ended: Tensor) -> tuple[Tensor, Tensor]:
        """Return (advantage of each answer's tokens [R], standard deviation of its group's scores [R], 0
        without groups) for all R answers of a rollout.

        ``scores`` float64 [R] (NaN: left out), ``groups`` int64 [R] (index of the prompt), ``ended`` bool [R]
        (not truncated).
        """

    def is_flat(self, scores: Tensor, spread: Tensor) -> bool:
        """Whether no answer of a rollout gets an advantage. ``scores`` and ``spread``: argument and second
        result of ``compute_advantages``.
        """

    def finalize_rollout(
        self, batches: Sequence[Sequence[Batch]], answers: RolloutAnswers
    ) -> tuple[list[list[Batch]], Mapping[str, float]]:
        """Return (this rank's micro-batches with the fields that depend on all precomputed ones, statistics
        for the log). Collective.
        """
