"""How a device multiplies the tokens of a mixture by the weights of their experts."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import Decision

PRODUCTS, PRODUCT_AN_EXPERT = "experts", "one product an expert"
#: torch has one kernel for all experts of a layer in bfloat16 on these, by the capability's major number
#: (torch 2.13, ``aten/src/ATen/native/cuda/GroupedBlas.cpp``: ``_grouped_mm_cuda``)
ONE_KERNEL_ON, ONE_KERNEL_IN = (9, 10), "bfloat16"


def experts_wait(capability: float | None, compute: str) -> bool:
    """Whether the host waits for the number of tokens of each expert: a CUDA device of this capability (9.0)
    has no grouped kernel for the dtype ``compute``. False for other devices, whose kernels are not known.
    """
    return capability is not None and (compute != ONE_KERNEL_IN or int(capability) not in ONE_KERNEL_ON)


def grouped_decisions(shape: ModelShape | None, capability: float | None, compute: str) -> Iterator[Decision]:
    """Yield what the plan says of a mixture's products on a CUDA device."""
    if shape is None or shape.mixture is None or capability is None:
        return
    if experts_wait(capability, compute):
        able = " and ".join(f"{major}.x" for major in ONE_KERNEL_ON)
        why = (
            f"torch has one kernel for all experts only in {ONE_KERNEL_IN} and of compute capability {able};"
            f" here ({compute}, {capability:.1f}) the host waits for the number of each expert's tokens, in"
            " every layer"
        )
        yield Decision(PRODUCTS, PRODUCT_AN_EXPERT, why)
    else:
        yield Decision(PRODUCTS, "one grouped product", "torch's kernel for all experts of a layer at once")
