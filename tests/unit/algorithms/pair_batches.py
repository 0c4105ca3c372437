"""Batches of preference pairs made of nothing but lengths, ids and labels."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.protocols.batch import IGNORE_INDEX, Batch


def pair_batch(lengths: list[int], ids: list[int], margins: list[float]) -> Batch:
    """Documents of these lengths, of which all but the first two tokens are learnt."""
    total, bounds = sum(lengths), [0]
    labels = torch.full((1, total), IGNORE_INDEX)
    for length in lengths:
        labels[0, bounds[-1] + 1 : bounds[-1] + length - 1] = 1
        bounds.append(bounds[-1] + length)
    cu = torch.tensor(bounds, dtype=torch.int32)
    extras = {"margin": torch.tensor(margins, dtype=torch.float64)}
    return Batch(
        torch.zeros(1, total, dtype=torch.int64),
        labels,
        labels,
        cu,
        max(lengths),
        torch.tensor(ids),
        1,
        group=2,
        extras=extras,
    )


def batch_of(pairs: int, filler: bool = True) -> tuple[Batch, Tensor]:
    generator = torch.Generator().manual_seed(pairs)
    count = 2 * (pairs + filler)
    lengths = torch.randint(3, 9, (count,), generator=generator).tolist()
    ids = [*range(2 * pairs), *([-1, -1] if filler else [])]
    margins = torch.rand(count // 2, generator=generator, dtype=torch.float64).repeat_interleave(2).tolist()
    scores = torch.randn(count, generator=generator, dtype=torch.float64).requires_grad_()
    return pair_batch(lengths, ids, margins), scores
