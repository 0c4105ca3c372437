"""Sums of squares of gradients that keep their digits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

CHUNK = 1 << 16  # elements summed in the gradient's own dtype; the partial sums are added in float64


def squares(gradients: Sequence[Tensor]) -> Tensor:
    """The sum of squares of each gradient, float64 [N] on their device (N ≥ 1).

    torch 2.13 adds up a fp32 norm on a CPU one lane after another: of 16 M elements it is wrong by 6e-4 of itself, and by another
    amount for every way to shard the tensor. A GPU reduces by a tree, which is right to the last bits.
    """
    if gradients[0].device.type != "cpu":
        return torch.stack([n.double() for n in torch._foreach_norm(list(gradients), 2.0)]).square()
    return torch.stack([_square(g.detach().reshape(-1)) for g in gradients])


def _square(flat: Tensor) -> Tensor:
    if flat.numel() <= CHUNK or flat.dtype == torch.float64:
        return flat.dot(flat).double()
    return torch.stack([part.dot(part) for part in torch.split(flat, CHUNK)]).double().sum()
