"""Base of algorithms that learn from the policy's own answers; the training loop generates the rollouts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paceline.algorithms.algorithm import Algorithm
from paceline.algorithms.preference.pair_policy import document_labels
from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.roles import Output, Role
from paceline.protocols.rollout import PrecomputedField, RolloutAnswers
from paceline.runtime.device.device import widened

TERM = "policy"


class OnPolicy(Algorithm):
    """Base class of on-policy algorithms: windows come from rollouts of ``updates_per_rollout`` optimizer
    steps.

    Each answer is one document, and its sampled tokens are the labels.
    ``protocols.rollout.OnPolicyObjective`` documents the methods.
    """

    loss_falls = False  # its sign follows the advantages
    passes: int = 1  # over each rollout
    updates_per_rollout: int = 1
    uses_group_baseline: bool = True
    masks_truncated: bool = False
    learns_kl: bool = False
    scales_kl: bool = False
    extra_fields: tuple[str, ...] = ()  # added by ``finalize_rollout``

    uses_old: bool = True  # log-probabilities of the policy as it was when it answered
    uses_reference: bool = False

    def set_passes(self, passes: int, updates_per_pass: int) -> None:
        """Set how often each rollout is trained on, and in how many optimizer steps."""
        self.passes, self.updates_per_rollout = passes, passes * updates_per_pass

    def set_models(self, *, kl: bool, reference: str, reward_model: bool) -> None:
        """Set the frozen models; ``reference`` ``adapter``: the policy itself, its adapter disabled."""
        self.uses_reference = kl
        self.frozen = (
            *((Role.REFERENCE,) if kl and reference != "adapter" else ()),
            *((Role.REWARD,) if reward_model else ()),
        )

    def precomputed_fields(self) -> Sequence[PrecomputedField]:
        """Return the forwards to run on a rollout before its first step."""
        old = PrecomputedField("old", Role.POLICY, Output.LOGPROBS, "sampled")
        reference = PrecomputedField("reference", Role.REFERENCE, Output.LOGPROBS)
        return [*([old] if self.uses_old else []), *([reference] if self.uses_reference else [])]

    def required_outputs(self, role: Role, *, training: bool) -> frozenset[Output]:
        return frozenset({Output.LOGPROBS, Output.ENTROPY})

    def fields(self) -> tuple[str, ...]:
        """Return the names of ``Batch.tokens`` in a rollout."""
        return (
            "sampled",
            "advantage",
            *(each.name for each in self.precomputed_fields()),
            *self.extra_fields,
        )

    @abstractmethod
    def compute_advantages(self, scores: Tensor, groups: Tensor, ended: Tensor) -> tuple[Tensor, Tensor]:
        """Return (advantage of each answer [R], std of its group [R]) for all R answers of a rollout.

        ``scores`` float64 [R] (NaN: not scored); ``groups`` int64 [R] numbers the prompts; ``ended`` bool [R]
        is false for truncated answers.
        """

    def is_flat(self, scores: Tensor, spread: Tensor) -> bool:
        """Whether the rewards give no answer of a rollout an advantage."""
        return self.uses_group_baseline and bool((spread == 0).all())

    def finalize_rollout(
        self, batches: Sequence[Sequence[Batch]], answers: RolloutAnswers
    ) -> tuple[list[list[Batch]], Mapping[str, float]]:
        """Return (this rank's micro-batches, completed from the precomputed fields; statistics to log).

        Collective.
        """
        return [list(row) for row in batches], {}


@dataclass(frozen=True)
class LabelledTokens:
    """Labelled positions of a micro-batch: ``segments`` int64 [L] is the answer of each, ``lengths`` int64
    [D] their number per answer.
    """

    segments: Tensor
    lengths: Tensor

    @staticmethod
    def of(batch: Batch) -> LabelledTokens:
        """Build from the labels and document boundaries of ``batch``."""
        # The first boundary, 0, is left out: a place before the next one is in document 0.
        segments = torch.searchsorted(batch.boundaries()[1:], batch.label_places(), right=True)
        return LabelledTokens(segments, document_labels(batch))


def of_answers(values: Tensor, where: LabelledTokens) -> Tensor:
    """Return [D]: the value that the tokens of an answer share (``values`` [L]); 0 for one without tokens."""
    shared = values.new_zeros(len(where.lengths))
    # Equal values at every token of an answer, so it does not matter which write is last.
    shared[where.segments] = values
    return shared


def num_answers(batch: Batch) -> Tensor:
    """Return the number of scored answers in a micro-batch, an int64 scalar."""
    return (
        batch.extras["is_scored"].sum() if "is_scored" in batch.extras else torch.zeros((), dtype=torch.int64)
    )


def regrouped(flat: Iterable[Batch], rows: Sequence[Sequence[Batch]]) -> list[list[Batch]]:
    """Return the micro-batches of ``flat`` in rows as long as those of ``rows``."""
    batches = iter(flat)
    return [[next(batches) for _ in row] for row in rows]


def sums_of(seen: Mapping[str, Tensor], term: str) -> dict[str, Tensor]:
    """Return the metrics ``name/term``: the sum of each metric's values [L], in the widest dtype."""
    return {f"{name}/{term}": widened(values).sum() for name, values in seen.items()}


def field_or(batch: Batch, name: str, default: Tensor) -> Tensor:
    """Return a token field [L], or ``default`` if the batch lacks it: before the first update, in fillers."""
    return batch.at_labels(name).to(default.dtype) if name in batch.tokens else default


def with_tokens(batch: Batch, name: str, values: Tensor) -> Batch:
    """Return ``batch`` with the token field ``name``: ``values`` [L] at labelled positions, 0 elsewhere."""
    # On the host, where the batches of a rollout wait for their step.
    spread = torch.zeros(batch.labels.shape, dtype=values.dtype)
    spread[batch.labels != IGNORE_INDEX] = values.detach().cpu()
    return replace(batch, tokens={**batch.tokens, name: spread})


def per_token(means: Mapping[str, float]) -> dict[str, float]:
    """Turn metrics whose term is not weighted by tokens into means over tokens.

    They are divided by ``tokens``, which has the same weight.
    """
    # Mean tokens of an answer, if the term is weighted by answers.
    tokens = means.get("tokens", 0.0)
    return {name: value / tokens if tokens else 0.0 for name, value in means.items() if name != "tokens"}
