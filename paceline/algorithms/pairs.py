"""What algorithms on whole answers share: sums over each, and of pairs which are real and their two halves."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.protocols.batch import IGNORE_INDEX, Batch


def real_pairs(batch: Batch) -> Tensor:
    """bool [P]: True where a pair is no filler. Documents are chosen, rejected, chosen, …; one too many is padding of an engine."""
    pairs = batch.document_ids.numel() // 2
    return batch.document_ids[0 : 2 * pairs : 2] >= 0


def halves(values: Tensor) -> tuple[Tensor, Tensor]:
    """(chosen [P], rejected [P]) of a value a document [D]."""
    pairs = values.numel() // 2
    return values[0 : 2 * pairs : 2], values[1 : 2 * pairs : 2]


def sum_of(values: Tensor, real: Tensor) -> Tensor:
    """Scalar: the sum over real pairs; what fillers computed stays in the graph and weighs nothing."""
    return torch.where(real, values, torch.zeros_like(values)).sum()


def document_sums(values: Tensor, batch: Batch) -> Tensor:
    """[D]: a value a labelled position [L], summed by document (of which a flat batch has the boundaries)."""
    places = (batch.labels.flatten() != IGNORE_INDEX).nonzero().squeeze(1)
    bounds = batch.cu_seqlens.to(places.device).long()
    owner = torch.searchsorted(bounds, places, right=True) - 1
    return values.new_zeros(bounds.numel() - 1).index_add(0, owner, values)


def document_labels(batch: Batch) -> Tensor:
    """int64 [D]: labelled positions of each document."""
    labelled = (batch.labels.flatten() != IGNORE_INDEX).long()
    before = torch.nn.functional.pad(labelled.cumsum(0), (1, 0))
    bounds = batch.cu_seqlens.to(labelled.device).long()
    return before[bounds[1:]] - before[bounds[:-1]]
