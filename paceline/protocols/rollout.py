"""What rollouts need to know of an algorithm that learns from the policy's own answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from paceline.protocols.algorithm import Objective
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Ask, Role

Sum = Callable[[Sequence[float]], list[float]]  # over all ranks that see different answers, equal on every rank


@dataclass(frozen=True)
class PrecomputedField:
    """One forward over a rollout's micro-batches without gradients: ``ask`` of ``role``, kept as the field ``name`` of ``Batch.tokens``.

    ``known``: the field that holds the same already where sampling computes as training does; empty: none.
    """

    name: str
    role: Role
    ask: Ask
    known: str = ""


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
        self, batches: Sequence[Sequence[Batch]], total: Sum
    ) -> tuple[list[list[Batch]], Mapping[str, float]]:
        """(this rank's micro-batches of a rollout with what follows from everything that was precomputed, statistics for the log). Collective."""
        ...
