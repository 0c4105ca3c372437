"""The norm of a step's gradients, and a step that clips by it or is left out for it on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from paceline.plan.hardware.device_kinds import CUDA
from paceline.runtime.device.device import sum_dtype

CHUNK = 1 << 16  # elements summed in the gradient's own dtype; the partial sums are added in float64


def squares(gradients: Sequence[Tensor]) -> Tensor:
    """Return the sum of squares of each gradient, float64 [N] on their device (N ≥ 1).

    On a CPU torch 2.13 accumulates an fp32 norm sequentially per lane. Over 16 M elements its relative error
    is 6e-4, and differs for every sharding of the tensor. A GPU uses a tree reduction, which is accurate to
    the last bits.
    """
    if gradients[0].device.type != "cpu":
        # A few kernels over all tensors instead of a launch for each.
        norms = torch._foreach_norm(list(map(_summable, gradients)), 2.0)
        return torch.stack([n.to(sum_dtype(gradients[0].device)) for n in norms]).square()
    return torch.stack([_square(_summable(g.detach().reshape(-1))) for g in gradients])


def _summable(gradient: Tensor) -> Tensor:
    """Return a 16-bit gradient in fp32, since 16 bits are too few for a sum of squares."""
    return gradient.float() if gradient.dtype in (torch.bfloat16, torch.float16) else gradient


def _square(flat: Tensor) -> Tensor:
    if flat.numel() <= CHUNK or flat.dtype == torch.float64:
        return flat.dot(flat).double()
    return torch.stack([part.dot(part) for part in torch.split(flat, CHUNK)]).double().sum()


def skips_on_device(optimizer: torch.optim.Optimizer, norm: Tensor) -> bool:
    """Whether ``optimizer`` takes a tensor that says whether to step: torch's fused ones do.

    On a CPU reading the norm costs nothing, and decides before the clipping.
    """
    return norm.device.type != "cpu" and getattr(optimizer, "_step_supports_amp_scaling", False)


@contextmanager
def clipping_and_skipping(
    optimizer: torch.optim.Optimizer, norm: Tensor, max_norm: float | None, refused: Tensor | None = None
) -> Iterator[None]:
    """Inside the context ``optimizer.step()`` changes nothing if ``norm`` is inf or nan (torch's
    ``found_inf``) or the step is ``refused``. Otherwise it steps by gradients clipped to ``max_norm``.

    Fused kernels of CUDA clip on the way (``grad_scale``, by which they divide), without a pass over the
    gradients; torch's GradScaler gives them both. Other devices' kernels are not known to read it: there
    gradients are clipped before.
    """
    # A tensor, not a bool: the fused kernel reads it on the device, without a wait of the host.
    left_out = ~torch.isfinite(norm) if refused is None else ~torch.isfinite(norm) | refused
    optimizer.found_inf = left_out.to(torch.float32)  # type: ignore[attr-defined]
    on_the_way = max_norm and norm.device.type == CUDA.name
    if on_the_way:  # as ``torch.nn.utils.clip_grads_with_norm_``
        assert max_norm
        # The kernels divide by ``grad_scale``; 1e-6 is the epsilon of ``torch.nn.utils.clip_grad_norm_``.
        excess = ((norm + 1e-6) / max_norm).clamp(min=1.0)
        optimizer.grad_scale = excess.to(torch.float32)  # type: ignore[attr-defined]
    elif max_norm:
        gradients = [p for group in optimizer.param_groups for p in group["params"]]
        torch.nn.utils.clip_grads_with_norm_(gradients, max_norm, norm)
    try:
        yield
    finally:
        # The attributes would act on every later step, also on one outside this context.
        del optimizer.found_inf  # type: ignore[attr-defined]
        if on_the_way:
            del optimizer.grad_scale  # type: ignore[attr-defined]


def scale_of(scaler: torch.amp.GradScaler, like: Tensor) -> Tensor:
    """Return the scale for the next window as ``like``, without reading it."""
    # ``get_scale`` calls ``item()``, which waits for the device; torch has no public way around it.
    scale: Tensor = scaler._get_scale_async()  # type: ignore[assignment]
    return scale.to(like)
