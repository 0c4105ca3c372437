"""What rollouts need to know of an algorithm that learns from the policy's own answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from paceline.protocols.algorithm import Objective
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role

Sum = Callable[[Sequence[float]], list[float]]  # over all ranks that see different answers, equal on every rank


@dataclass(frozen=True)
class PrecomputedField:
    """One forward over a rollout's micro-batches without gradients: ``output`` of ``role``, kept as the field ``name`` of ``Batch.tokens``.

    ``known``: the field that holds the same already where sampling computes as training does; empty: none.
    """

    name: str
    role: Role
    output: Output
    known: str = ""


@dataclass(frozen=True)
class RolloutAnswers:
    """All R answers of a rollout, equal on every rank, and where this rank's lie among them.

    advantages  float64 [R], what ``compute_advantages`` gave
    groups      int64 [R], the number of each answer's prompt
    is_scored   bool [R], whether it has a score and is trained on (what it is trained on may be no token of it)
    places      int64 [D] for each of this rank's micro-batches in their order: the place of each document among the R
    total       sums numbers over the ranks
    """

    advantages: Tensor
    groups: Tensor
    is_scored: Tensor
    places: Sequence[Tensor]
    total: Sum

    def everyones(self, own: Sequence[Tensor]) -> Tensor:
        """float64 [R]: a number of each answer, from those of this rank's documents (``own``: [D] a micro-batch). Collective."""
        table = torch.zeros(len(self.groups), dtype=torch.float64)
        for where, values in zip(self.places, own, strict=True):
            table[where] = values.detach().double().cpu()
        return torch.tensor(self.total(table.tolist()), dtype=torch.float64)


class OnPolicyObjective(Objective, Protocol):
    """The loss side of an algorithm whose windows are rollouts.

    ``Batch.tokens`` of a rollout holds ``fields()``: ``sampled`` (log-probability at sampling), ``advantage``, what ``precomputed_fields`` names and what
    ``finalize_rollout`` adds; ``Batch.extras`` holds ``is_scored`` (1 for an answer that has a score, 0 for fillers and answers left out).
    """

    passes: int  # over each rollout
    updates_per_rollout: int  # optimizer steps
    uses_group_baseline: bool  # an answer is better or worse than the others to its prompt
    masks_truncated: bool  # the tokens of an answer that was cut off have no loss

    def precomputed_fields(self) -> Sequence[PrecomputedField]:
        """The forwards that a rollout needs before its first step."""
        ...

    def fields(self) -> tuple[str, ...]:
        """The names of ``Batch.tokens`` in a rollout."""
        ...

    def compute_advantages(self, scores: Tensor, groups: Tensor, ended: Tensor) -> tuple[Tensor, Tensor]:
        """(the advantage of each token of an answer [R], spread of their group [R]) of all R answers of a rollout from their scores float64 [R]
        (NaN: left out); ``groups`` int64 [R] numbers the prompts, ``ended`` bool [R]: not cut off."""
        ...

    def finalize_rollout(
        self, batches: Sequence[Sequence[Batch]], answers: RolloutAnswers
    ) -> tuple[list[list[Batch]], Mapping[str, float]]:
        """(this rank's micro-batches of a rollout with what follows from everything that was precomputed, statistics for the log). Collective."""
        ...
