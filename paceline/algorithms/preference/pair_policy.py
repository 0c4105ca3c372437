"""Bases of preference algorithms: answers compared with a reference, pairs of answers, sums over answers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from paceline.algorithms.algorithm import Algorithm
from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.roles import Output, Role
from paceline.runtime.device.device import widened


def real_pairs(batch: Batch) -> Tensor:
    """Return bool [P]: False for fillers.

    Documents alternate chosen, rejected; an odd last one pads the batch.
    """
    pairs = batch.document_ids.numel() // 2
    return batch.document_ids[0 : 2 * pairs : 2] >= 0


def halves(values: Tensor) -> tuple[Tensor, Tensor]:
    """Split per-document values [D] into (chosen [P], rejected [P])."""
    pairs = values.numel() // 2
    return values[0 : 2 * pairs : 2], values[1 : 2 * pairs : 2]


def sum_of(values: Tensor, real: Tensor) -> Tensor:
    """Return the scalar sum over entries that are ``real``; fillers stay in the graph with weight 0."""
    # Not a product with 0, which keeps a filler's infinity as NaN.
    return torch.where(real, values, torch.zeros_like(values)).sum()


def document_sums(values: Tensor, batch: Batch) -> Tensor:
    """Sum per-label values [L] into per-document sums [D], by the boundaries of a flat batch."""
    places, bounds = batch.label_places(), batch.boundaries()
    # ``right``: a label at a document's first place is that document's.
    owner = torch.searchsorted(bounds, places, right=True) - 1
    return values.new_zeros(bounds.numel() - 1).index_add(0, owner, values)


def document_labels(batch: Batch) -> Tensor:
    """Return int64 [D]: the number of labelled positions of each document."""
    labelled = (batch.labels.flatten() != IGNORE_INDEX).long()
    before = torch.nn.functional.pad(labelled.cumsum(0), (1, 0))
    bounds = batch.boundaries()
    # Differences of running counts: no loop over documents.
    return before[bounds[1:]] - before[bounds[:-1]]


REFERENCE = "reference_logps"  # in ``Batch.extras``: [D], log π_ref(y|x) of each answer


class WithReference(Algorithm):
    """``reference`` says where log π_ref comes from: ``live`` (a separate frozen model), ``adapter`` (the
    policy with its adapter disabled), ``cached`` (precomputed, in every batch). Empty means no reference: log
    π_ref = 0.
    """

    def __init__(self, reference: str) -> None:
        self.has_reference = bool(reference)
        self.reference_roles = (Role.REFERENCE,) if reference in ("live", "adapter") else ()
        self.frozen = (Role.REFERENCE,) if reference == "live" else ()

    def required_outputs(self, role: Role, *, training: bool) -> frozenset[Output]:
        return frozenset({Output.LOGPROBS})

    def attach_outputs(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Batch:
        return replace(
            batch, extras={**batch.extras, REFERENCE: document_sums(outputs[Output.LOGPROBS.value], batch)}
        )

    def reference_logps(self, logps: Tensor, batch: Batch) -> Tensor:
        """Return log π_ref [D]; 0 for a batch of fillers only."""
        reference = batch.extras.get(REFERENCE) if self.has_reference else torch.zeros_like(logps)
        if reference is None:
            assert not bool((batch.document_ids >= 0).any()), "the reference's outputs are missing"
            return torch.zeros_like(logps)
        return reference.to(logps)


TERM, SFT_TERM = "pairs", "sft"
_METRICS = (
    "rewards/chosen",
    "rewards/rejected",
    "rewards/accuracies",
    "rewards/margins",
    "logps/chosen",
    "logps/rejected",
)


class PairPolicy(Algorithm):
    """loss = Σ_pairs ``pair_loss`` / Σ_pairs 1 over the pairs of ALL ranks and micro-batches of a step.

    A non-zero ``alpha`` adds α Σ_t -log π(y_chosen,t) / Σ_t 1 over the tokens of chosen answers.
    With ``mean_of_means`` it is a mean over pairs of each chosen answer's mean.

    Metrics are means over pairs, with TRL's names: ``rewards/chosen`` and ``rewards/rejected`` (β times the
    first result of ``rewards_and_logps``), ``rewards/accuracies``, ``rewards/margins``, ``logps/chosen``,
    ``logps/rejected``.
    """

    train_metrics = tuple(f"{name}/{TERM}" for name in _METRICS)
    counts_documents = True
    beta: float
    alpha: float
    mean_of_means = False

    @abstractmethod
    def pair_loss(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        """Return the loss of each pair [P] from ``compared`` of chosen and rejected answers, [P] each."""

    @abstractmethod
    def compared(self, logps: Tensor, batch: Batch) -> Tensor:
        """Return [D]: the quantity that the loss compares, from log π(y|x) [D], sums over tokens."""

    @abstractmethod
    def rewards_and_logps(self, logps: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return (rewards / β, log-probabilities) for the metrics, [D] each."""

    def required_outputs(self, role: Role, *, training: bool) -> frozenset[Output]:
        return frozenset({Output.LOGPROBS})

    def weights(self, batch: Batch) -> Mapping[str, Tensor]:
        real = real_pairs(batch)
        if not self.alpha:
            return {TERM: real.sum()}
        # Labelled tokens of the chosen answers alone.
        tokens = sum_of(halves(document_labels(batch))[0], real)
        return {TERM: real.sum(), SFT_TERM: real.sum() if self.mean_of_means else tokens}

    def losses(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        real = real_pairs(batch)
        logps = document_sums(outputs[Output.LOGPROBS.value], batch)
        sums = {TERM: sum_of(self.pair_loss(*halves(self.compared(logps, batch))), real)}
        if self.alpha:
            likelihood = token_means(logps, batch) if self.mean_of_means else logps
            sums[SFT_TERM] = -self.alpha * sum_of(halves(likelihood)[0], real)
        return sums

    def metrics(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        real = real_pairs(batch)
        rewards, logps = self.rewards_and_logps(
            widened(document_sums(outputs[Output.LOGPROBS.value].detach(), batch)), batch
        )
        (chosen, rejected), (chosen_logps, rejected_logps) = halves(self.beta * rewards), halves(logps)
        values = (
            chosen,
            rejected,
            # Equal rewards count as wrong.
            widened(chosen > rejected),
            chosen - rejected,
            chosen_logps,
            rejected_logps,
        )
        return {f"{name}/{TERM}": sum_of(value, real) for name, value in zip(_METRICS, values, strict=True)}


def token_means(sums: Tensor, batch: Batch) -> Tensor:
    """Return [D]: ``sums`` divided by the tokens of each answer (by 1 for a filler, which has none)."""
    return sums / document_labels(batch).clamp(min=1)
