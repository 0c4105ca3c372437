"""What algorithms that learn from the policy's own answers have in common; rollouts themselves are made by the training loop."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paceline.algorithms.base import Algorithm
from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.roles import Role
from paceline.protocols.rollout import PrecomputedField, RolloutAnswers

TERM = "policy"


class OnPolicy(Algorithm):
    """Windows come from rollouts of ``updates_per_rollout`` optimizer steps; each answer is one document, its sampled tokens are the labels. What each
    method means: ``protocols.rollout.OnPolicyObjective``."""

    loss_falls = False  # its sign is that of the advantages
    passes: int = 1  # over each rollout
    updates_per_rollout: int = 1
    uses_group_baseline: bool = True
    masks_truncated: bool = False
    extra_fields: tuple[str, ...] = ()  # that ``finalize_rollout`` adds

    @abstractmethod
    def precomputed_fields(self) -> Sequence[PrecomputedField]:
        """The forwards that a rollout needs before its first step."""

    def fields(self) -> tuple[str, ...]:
        """The names of ``Batch.tokens`` in a rollout."""
        return ("sampled", "advantage", *(each.name for each in self.precomputed_fields()), *self.extra_fields)

    @abstractmethod
    def compute_advantages(self, scores: Tensor, groups: Tensor, ended: Tensor) -> tuple[Tensor, Tensor]:
        """(the advantage of each token of an answer [R], spread of their group [R]) of all R answers of a rollout from their scores float64 [R]
        (NaN: left out); ``groups`` int64 [R] numbers the prompts, ``ended`` bool [R]: not cut off."""

    def finalize_rollout(
        self, batches: Sequence[Sequence[Batch]], answers: RolloutAnswers
    ) -> tuple[list[list[Batch]], Mapping[str, float]]:
        """(this rank's micro-batches with what follows from everything that was precomputed, statistics for the log). Collective."""
        return [list(row) for row in batches], {}


@dataclass(frozen=True)
class Tokens:
    """The labelled positions of a micro-batch: ``segments`` int64 [L] the answer each belongs to, ``lengths`` int64 [D] how many each has."""

    segments: Tensor
    lengths: Tensor

    @staticmethod
    def of(batch: Batch) -> Tokens:
        """From labels and boundaries."""
        device = batch.labels.device
        sizes = (batch.cu_seqlens[1:] - batch.cu_seqlens[:-1]).to(device).long()
        documents = torch.repeat_interleave(torch.arange(len(sizes), device=device), sizes)
        segments = documents[batch.labels[0] != IGNORE_INDEX]
        return Tokens(segments, torch.bincount(segments, minlength=len(sizes)))


def of_answers(values: Tensor, where: Tokens) -> Tensor:
    """[D]: what the tokens of each answer share (``values`` [L]); 0 for one without."""
    found = values.new_zeros(len(where.lengths))
    found[where.segments] = values
    return found


def num_answers(batch: Batch) -> Tensor:
    """int64 scalar: the answers of a micro-batch that have a score."""
    return batch.extras["is_scored"].sum() if "is_scored" in batch.extras else torch.zeros((), dtype=torch.int64)


def frozen_roles(reference: bool, reward_model: bool) -> tuple[Role, ...]:
    """The models that are only asked."""
    return (*((Role.REFERENCE,) if reference else ()), *((Role.REWARD,) if reward_model else ()))


def field_or(batch: Batch, name: str, default: Tensor) -> Tensor:
    """[L]: a field of the tokens, or ``default`` where the rollout has none (its own log-probabilities before the first update, a filler)."""
    return batch.at_labels(name).to(default.dtype) if name in batch.tokens else default


def with_tokens(batch: Batch, name: str, values: Tensor) -> Batch:
    """``batch`` with the field ``name`` of its tokens: ``values`` [L] at the labelled positions, 0 elsewhere."""
    spread = torch.zeros(batch.labels.shape, dtype=values.dtype)
    spread[batch.labels != IGNORE_INDEX] = values.detach().cpu()
    return replace(batch, tokens={**batch.tokens, name: spread})


def per_token(means: Mapping[str, float]) -> dict[str, float]:
    """Metrics whose term's weight is no token count, divided by ``tokens`` of the same weight: means over tokens."""
    tokens = means.get("tokens", 0.0)
    return {name: value / tokens if tokens else 0.0 for name, value in means.items() if name != "tokens"}
