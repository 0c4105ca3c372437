"""Whether the next tokens are sampled by Triton kernels: asked once an engine, tried once, and said."""

from __future__ import annotations

import torch

from paceline.generation.sampling_kernels import operators
from paceline.runtime.device.device import device_capability, triton_missing

CAPABILITY = 7.0  # what the kernels are compiled for in tests, and later


def why_no_kernels(device: torch.device) -> str | None:
    """Return why sampling on ``device`` takes torch's operations in place of Triton kernels, or None."""
    capability = device_capability(device)
    if capability is None:
        return f"there are none for {device.type}"
    if capability < CAPABILITY:
        return f"they need compute capability {CAPABILITY}"
    if missing := triton_missing(device):
        return missing
    try:
        zeros = torch.zeros(1, dtype=torch.int64, device=device)
        logits = torch.zeros(1, 8, device=device)
        operators.draw(logits, operators.nucleus(logits, 4, 0.5, 1.0), zeros, zeros, 1.0, True)
    except Exception as error:  # noqa: BLE001  (of a compiler, a linker, a driver: torch's operations sample)
        return f"the first one failed: {type(error).__name__}: {error}"[:200]
    return None
