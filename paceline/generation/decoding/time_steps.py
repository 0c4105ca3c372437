"""The bounds of a Mamba-2 layer's time step, while it writes token by token.

Transformers bounds the time step in a forward over several tokens (``dt_limit``), and not in the step of one
token: answers would be drawn from another model than the one that is trained.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel

_LIMIT, _PROJECTION, _BIAS, _SCALE = "time_step_limit", "in_proj", "dt_bias", "mup_vector"


@contextmanager
def bounded_time_steps(hf: HFModel) -> Iterator[None]:
    """Inside, every forward of such layers bounds the time step.

    Their input projection ends in the time step of each head, before bias and softplus, which is monotonic:
    it is bounded there, which changes nothing where the layer bounds it again.
    """
    hooks = [
        getattr(layer, _PROJECTION).register_forward_hook(_Bound(layer))
        for layer in hf.modules()
        if _limits(layer) is not None
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _limits(layer: nn.Module) -> tuple[float, float] | None:
    """Return the least and the largest time step of a layer; None for layers without."""
    given = getattr(layer, _LIMIT, None)
    if not (isinstance(given, Sequence) and isinstance(getattr(layer, _PROJECTION, None), nn.Module)):
        return None
    low, high = float(given[0]), float(given[1])
    return None if low <= 0.0 and math.isinf(high) else (low, high)


class _Bound:
    """A forward hook of the input projection of ``layer``."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        limits, bias = _limits(self.layer), getattr(self.layer, _BIAS)
        assert limits is not None
        scale = getattr(self.layer, _SCALE, None)  # Falcon-H1 multiplies the projection by it
        least, most = (_before(limit, bias, scale).to(output.dtype) for limit in limits)
        heads = bias.shape[0]
        bounded = output[..., -heads:].clamp(least, most)
        return torch.cat((output[..., :-heads], bounded), dim=-1)


def _before(limit: float, bias: Tensor, scale: Tensor | None) -> Tensor:
    """Return what becomes ``limit`` by scale, bias and softplus: [heads]."""
    inverse = limit if math.isinf(limit) else math.log(math.expm1(limit)) if limit > 0 else -math.inf
    found = inverse - bias.detach().float()
    return found if scale is None else found / scale.flatten()[-bias.shape[0] :]
