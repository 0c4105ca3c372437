"""Values that stand in for weights which are not here, so that kernels can be chosen by a probe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_STEPS = 251  # a prime: neighbouring rows and columns differ


@contextmanager
def stand_in_values(
    module: nn.Module, on: bool = True, rows: int | None = None, every: bool = False
) -> Iterator[None]:
    """Inside the context the parameters of ``module`` that are on meta (``every``: all) have values on the
    host, as spread as weights usually are; at most ``rows`` of each. Does nothing unless ``on``.
    """
    kept = [
        (part._parameters, name, parameter)
        for part in module.modules()
        for name, parameter in part._parameters.items()
        if on and parameter is not None and (every or parameter.is_meta)
    ]
    for table, name, parameter in kept:
        table[name] = nn.Parameter(_values(parameter[:rows]), requires_grad=False)
    try:
        yield
    finally:
        for table, name, parameter in kept:
            table[name] = parameter


def _values(like: Tensor) -> Tensor:
    """Return values in [-1, 1), divided by the square root of the inputs. Not random: that takes seconds for
    a large layer.
    """
    steps = torch.arange(like.numel(), dtype=torch.int32).remainder_(_STEPS).to(torch.float32)
    inputs = like.shape[-1] if like.ndim > 1 else 1
    return steps.div_(_STEPS / 2).sub_(1.0).mul_(inputs**-0.5).view(like.shape).to(like.dtype)
