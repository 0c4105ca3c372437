"""Which kernels compute the row-wise work of a model (norms, gated activations, rotary embedding, loss): a
function of the device and of what is installed, which the plan asks beforehand and the model at its first
step.
"""

from __future__ import annotations

TRITON = "triton"  # one Triton kernel each, see ``paceline.models.triton_kernels``
ATEN = "aten"  # torch's own fused kernel; norms only
EAGER = "eager"  # several of torch's operations each

TRITON_CAPABILITY = 7.0  # what the kernels are compiled for in tests, and later


def row_kernels(device: str, capability: float | None, uncompiled: str) -> tuple[str, str]:
    """Return ``TRITON`` or ``EAGER`` and the reason.

    ``capability``: CUDA's compute capability, None elsewhere or if unknown; ``uncompiled``: why
    Triton's kernels cannot be compiled there (``plan.hardware.toolchain``), empty if they can.
    """
    if capability is None:
        return EAGER, f"Paceline's Triton kernels are for NVIDIA devices, and this is {device}"
    if capability < TRITON_CAPABILITY:
        return EAGER, f"Triton needs compute capability {TRITON_CAPABILITY} (this device: {capability})"
    if uncompiled:
        return EAGER, f"Triton's kernels cannot be compiled: {uncompiled}"
    return TRITON, "one Triton kernel each for norms, gated activations, rotary embedding and loss"
