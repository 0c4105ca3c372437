"""A step that a device leaves out by itself if the gradient norm is not finite, so that the host need not
read the norm before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def skips_on_device(optimizer: torch.optim.Optimizer, norm: Tensor) -> bool:
    """Whether ``optimizer`` takes a tensor that says whether to step: torch's fused ones do.

    On a CPU reading the norm costs nothing, and decides before the clipping.
    """
    return norm.device.type != "cpu" and getattr(optimizer, "_step_supports_amp_scaling", False)


@contextmanager
def skipping_unless_finite(optimizer: torch.optim.Optimizer, norm: Tensor) -> Iterator[None]:
    """Inside the context ``optimizer.step()`` changes nothing if ``norm`` is inf or nan (torch's
    ``found_inf``, which its GradScaler gives to fused optimizers).
    """
    optimizer.found_inf = (~torch.isfinite(norm)).to(torch.float32)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del optimizer.found_inf  # type: ignore[attr-defined]


def scale_of(scaler: torch.amp.GradScaler, like: Tensor) -> Tensor:
    """Return the scale for the next window as ``like``, without reading it."""
    scale: Tensor = scaler._get_scale_async()  # type: ignore[assignment]
    return scale.to(like)
