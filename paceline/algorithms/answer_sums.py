"""Sums over whole answers, and the chosen and rejected halves of pairs."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.protocols.batch import IGNORE_INDEX, Batch


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
    return torch.where(real, values, torch.zeros_like(values)).sum()


def document_sums(values: Tensor, batch: Batch) -> Tensor:
    """Sum per-label values [L] into per-document sums [D], by the boundaries of a flat batch."""
    places, bounds = batch.label_places(), batch.boundaries()
    owner = torch.searchsorted(bounds, places, right=True) - 1
    return values.new_zeros(bounds.numel() - 1).index_add(0, owner, values)


def document_labels(batch: Batch) -> Tensor:
    """Return int64 [D]: the number of labelled positions of each document."""
    labelled = (batch.labels.flatten() != IGNORE_INDEX).long()
    before = torch.nn.functional.pad(labelled.cumsum(0), (1, 0))
    bounds = batch.boundaries()
    return before[bounds[1:]] - before[bounds[:-1]]
