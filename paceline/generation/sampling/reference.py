"""The kernels' computations in torch operations. CPUs use them (tests and simulated devices), and tests
compare the kernels with them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.generation.sampling.noise import gumbel

# The likeliest token's probability as an integer: sums are exact in any order
_ONE = float(1 << 40)


def nucleus(logits: Tensor, top_k: int, top_p: float, temperature: float) -> Tensor:
    """logits [B, V] -> bounds int64 [B, 2]: the least kept order, and the last kept column with that
    order."""
    value = _scaled(logits, temperature)
    order = orders(value)
    least = torch.zeros(len(value), dtype=torch.int64, device=value.device)
    last = torch.full_like(least, value.shape[1])
    if top_k < value.shape[1]:
        least = order.topk(top_k, dim=-1).values[:, -1]
    if top_p < 1.0:
        weight = ((value - value.amax(-1, keepdim=True)).exp() * _ONE).long()
        weight = weight.masked_fill(order < least[:, None], 0)
        share = torch.tensor(top_p, dtype=torch.float32).item()  # as a kernel is given it
        # At least 1, so that the likeliest token stays.
        limit = (weight.sum(-1).double() * share).long().clamp_min(1)
        # Stable: of equal logits the first columns are kept.
        ranked, places = order.sort(dim=-1, descending=True, stable=True)
        mass = weight.gather(1, places)
        # The last token before which the mass is still below the limit.
        end = ((mass.cumsum(-1) - mass < limit[:, None]) & (mass > 0)).sum(-1, keepdim=True) - 1
        least, last = ranked.gather(1, end).squeeze(1), places.gather(1, end).squeeze(1)
    return torch.stack((least, last), 1)


def draw(
    logits: Tensor, bounds: Tensor | None, streams: Tensor, places: Tensor, temperature: float, sampled: bool
) -> tuple[Tensor, Tensor]:
    """Return (tokens int64 [B], log-probabilities fp32 [B]); see ``kernels.draw``."""
    value = _scaled(logits, temperature)
    score = value + gumbel(streams, places, value.shape[1]) if sampled else value
    if bounds is not None:
        order, column = orders(value), torch.arange(value.shape[1], device=value.device)
        tie = (order == bounds[:, :1]) & (column <= bounds[:, 1:])
        score = score.masked_fill(~((order > bounds[:, :1]) | tie), -torch.inf)
    tokens = score.argmax(-1)
    return tokens, value.gather(1, tokens[:, None]).squeeze(1) - value.logsumexp(-1)


def orders(value: Tensor) -> Tensor:
    """int64 in 0 … 2^32 - 1, in the order of the fp32 numbers ``value``."""
    bits = value.view(torch.int32).long() & 0xFFFFFFFF
    # Negative numbers: all bits turned, as their magnitudes sort backwards; others: the sign bit set.
    return torch.where(bits >= 1 << 31, bits ^ 0xFFFFFFFF, bits | 1 << 31)


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    value = logits.float() / temperature
    # -0.0 and 0.0 are equal, but their bits are not.
    return torch.where(value == 0.0, torch.zeros_like(value), value)
