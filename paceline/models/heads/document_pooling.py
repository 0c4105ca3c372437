"""One vector a document from the hidden states of its tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.protocols.batch import Batch

FIRST, LAST, MEAN = "cls", "last", "mean"


def pooled(hidden: Tensor, batch: Batch, how: str) -> Tensor:
    """hidden [1, T, H] -> [D, H]: each document's first token (``cls``), last token, or mean over all."""
    bounds = batch.boundaries()
    if how == MEAN:  # a document is never empty
        sums = hidden[0] if hidden.dtype == torch.float64 else hidden[0].float()
        means = torch.segment_reduce(sums, "mean", lengths=bounds.diff(), axis=0, unsafe=True)
        return means.to(hidden.dtype)
    assert how in (FIRST, LAST), how
    return hidden[0].index_select(0, bounds[:-1] if how == FIRST else bounds[1:] - 1)
