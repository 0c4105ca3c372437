"""Sample the next tokens and their log-probabilities from logits."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.generation.engine import RolloutSampling
from paceline.generation.sampling import kernels
from paceline.generation.sampling.noise import gumbel


def choose(
    logits: Tensor, sampling: RolloutSampling, streams: Tensor, places: Tensor, kernels: bool = False
) -> tuple[Tensor, Tensor]:
    """Return (tokens int64 [B], log-probabilities [B]) from logits [B, V].

    ``streams`` and ``places``, int64 [B], select the noise (see ``noise.gumbel``). ``kernels``: use those of
    ``kernels``, unless the logits are fp64.
    """
    if kernels and logits.dtype != torch.float64:
        return _by_kernels(logits, sampling, streams, places)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    if sampling.temperature <= 0:
        tokens = largest(wide)
    else:
        if sampling.temperature != 1:
            wide = wide / sampling.temperature
        tokens = largest(keep_likeliest(wide, sampling) + gumbel(streams, places, wide.shape[-1]))
    # Over the full vocabulary, whatever top-k and top-p left: what training computes again.
    return tokens, wide.gather(1, tokens[:, None]).squeeze(1) - wide.logsumexp(-1)


def _by_kernels(
    logits: Tensor, sampling: RolloutSampling, streams: Tensor, places: Tensor
) -> tuple[Tensor, Tensor]:
    words, sampled = logits.shape[1], sampling.temperature > 0
    temperature, bounds = (sampling.temperature if sampled else 1.0), None
    top_k = sampling.top_k if 0 < sampling.top_k < words else words
    if sampled and (top_k < words or sampling.top_p < 1.0):
        bounds = kernels.nucleus(logits, top_k, sampling.top_p, temperature)
    return kernels.draw(logits, bounds, streams, places, temperature, sampled)


def largest(scores: Tensor) -> Tensor:
    """Return the argmax of each row of [B, V], int64 [B], ties to the first.

    On a CPU by NumPy, whose argmax over a row is ten times as fast as torch's.
    """
    return torch.from_numpy(scores.numpy().argmax(-1)) if scores.device.type == "cpu" else scores.argmax(-1)


def keep_likeliest(logits: Tensor, sampling: RolloutSampling) -> Tensor:
    """Set logits to -inf outside the top-k, then outside the top-p nucleus (Holtzman et al. 2020).

    The likeliest token always stays. Order and edge cases as in Transformers' warpers: first k, then p of
    what is left.
    """
    if 0 < sampling.top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(sampling.top_k, dim=-1).values[:, -1:], -torch.inf)
    if sampling.top_p < 1.0:
        ordered, places = logits.sort(dim=-1, descending=True, stable=True)
        mass = ordered.softmax(-1)
        drop = mass.cumsum(-1) - mass >= sampling.top_p
        # top_p 0 would drop all.
        drop[:, 0] = False
        logits = logits.masked_fill(torch.zeros_like(drop).scatter_(1, places, drop), -torch.inf)
    return logits
