"""Pad all micro-batches of a window to one shape: pipeline stages must know the size of what they receive.

The padding is documents without labels, so sums, weights and gradients do not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paceline.protocols.batch import IGNORE_INDEX, Batch

MULTIPLE = 64  # lengths are rounded up to this: few different shapes, and efficient ones for kernels


@dataclass(frozen=True)
class FixedShape:
    """``rows`` × ``length`` tokens: one row of concatenated documents when ``packed``, else one row per
    document.

    ``longest`` is the length of the longest document.
    """

    rows: int
    length: int
    longest: int
    packed: bool

    @staticmethod
    def of(batches: Sequence[Batch], packed: bool, multiple: int = MULTIPLE) -> FixedShape:
        """Return the smallest shape that fits all ``batches``: it depends on these alone, so that a resumed
        run computes the same.
        """
        longest = max(batch.max_seqlen for batch in batches)
        if not packed:
            return FixedShape(max(len(batch.document_ids) for batch in batches), longest, longest, packed)
        length = max(batch.input_ids.shape[1] for batch in batches)
        return FixedShape(1, -(-length // multiple) * multiple, longest, packed)

    def fit(self, batch: Batch) -> Batch:
        """Append documents of weight 0 to ``batch`` until it has this shape."""
        if not self.packed:
            added = [1] * (self.rows - len(batch.document_ids))
            return replace(_with_documents(batch, added), max_seqlen=self.longest)
        left = self.length - batch.input_ids.shape[1]
        added = [self.longest] * (left // self.longest) + (
            [left % self.longest] if left % self.longest else []
        )
        return _with_documents(batch, added)

    def empty(self, like: Batch) -> Batch:
        """Return a micro-batch of this shape with weight 0."""
        device = like.input_ids.device
        nothing = torch.zeros(1, 0, dtype=torch.int64, device=device)
        none = Batch(nothing, nothing, nothing, torch.zeros(1, dtype=torch.int32), 0, nothing[0], 0)
        return self.fit(none)


def _with_documents(batch: Batch, lengths: Sequence[int]) -> Batch:
    """Append documents of these lengths to ``batch``: token 0, no labels, id -1."""
    if not lengths:
        return batch
    device, total = batch.input_ids.device, sum(lengths)
    ids = torch.zeros(1, total, dtype=torch.int64, device=device)
    ends = torch.tensor(lengths, dtype=torch.int64).cumsum(0) + batch.input_ids.shape[1]

    def longer(tensor: Tensor, more: Tensor) -> Tensor:
        return torch.cat([tensor, more.to(tensor)], dim=-1)

    return Batch(
        input_ids=longer(batch.input_ids, ids),
        labels=longer(batch.labels, torch.full_like(ids, IGNORE_INDEX)),
        position_ids=longer(batch.position_ids, torch.cat([torch.arange(n) for n in lengths])[None]),
        cu_seqlens=longer(batch.cu_seqlens, ends),
        max_seqlen=max(batch.max_seqlen, *lengths),
        document_ids=longer(batch.document_ids, torch.full((len(lengths),), -1)),
        num_rows=batch.num_rows,
    )
