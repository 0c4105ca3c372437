"""Accurate sums of squares of gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.runtime.device.device import sum_dtype

CHUNK = 1 << 16  # elements summed in the gradient's own dtype; the partial sums are added in float64


def squares(gradients: Sequence[Tensor]) -> Tensor:
    """Return the sum of squares of each gradient, float64 [N] on their device (N ≥ 1).

    On a CPU torch 2.13 accumulates an fp32 norm sequentially per lane: over 16 M elements its relative error
    is 6e-4, and differs for every sharding of the tensor. A GPU uses a tree reduction, which is accurate to
    the last bits.
    """
    if gradients[0].device.type != "cpu":
        norms = torch._foreach_norm(list(map(_summable, gradients)), 2.0)
        return torch.stack([n.to(sum_dtype(gradients[0].device)) for n in norms]).square()
    return torch.stack([_square(_summable(g.detach().reshape(-1))) for g in gradients])


def _summable(gradient: Tensor) -> Tensor:
    """16 bits are too few for a sum of squares."""
    return gradient.float() if gradient.dtype in (torch.bfloat16, torch.float16) else gradient


def _square(flat: Tensor) -> Tensor:
    if flat.numel() <= CHUNK or flat.dtype == torch.float64:
        return flat.dot(flat).double()
    return torch.stack([part.dot(part) for part in torch.split(flat, CHUNK)]).double().sum()
