"""The kernels of one model: chosen by its device's capability, queried once, and recorded."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from paceline.models.attention import flex_attention
from paceline.models.triton_kernels import operators
from paceline.plan.model.kernels import (
    ATEN,
    EAGER,
    LABELS,
    TRITON,
    VARLEN_FLASH,
    AttentionCall,
    attention_kernel,
    row_kernels,
)
from paceline.runtime.device.device import device_capability, triton_missing


class AttentionKernels:
    """``ran``: the names of the kernels that were called (see ``plan.model.kernels.attention_kernel``)."""

    def __init__(self) -> None:
        self.ran: set[str] = set()
        self._facts: dict[torch.device, tuple[float | None, str]] = {}
        self._flex: flex_attention.FlexCall | None = None
        self.traced = ""  # the kernel that compiled layers were traced with last

    def choose(
        self,
        query: Tensor,
        value: Tensor,
        *,
        window: bool,
        softcap: bool,
        sinks: bool,
        dropout: bool,
        ahead: bool = False,
    ) -> str:
        """Return, and record, the kernel for query [1, H, T, D] and value [1, K, T, E]."""
        device = query.device
        if device not in self._facts:
            self._facts[device] = device_capability(device), triton_missing(device)
        call = AttentionCall(query.shape[-1], value.shape[-1], window, softcap, sinks, dropout, ahead)
        dtype = str(query.dtype).removeprefix("torch.")
        capability, missing = self._facts[device]
        name, _ = attention_kernel(device.type, capability, dtype, call, missing)
        self.ran.add(name)
        return name

    def flex(self) -> flex_attention.FlexCall:
        """Return ``flex_attention``, compiled by the first call of it."""
        if self._flex is None:
            self._flex = flex_attention.compiled_flex()
        return self._flex

    def describe(self) -> str:
        """Return the kernels that were called, for the log; empty before the first forward."""
        ran = self.ran | ({self.traced} if self.traced else set())
        newer = active_flash()
        names = [f"{x} ({newer})" if newer and x == VARLEN_FLASH else x for x in sorted(ran)]
        return f"; kernels called: {', '.join(names)}" if names else ""


@torch.compiler.assume_constant_result
def traced_kernel(
    device_type: str,
    dtype: str,
    width: int,
    value_width: int,
    window: bool,
    softcap: bool,
    sinks: bool,
    dropout: bool,
) -> str:
    """Return the kernel of a compiled layer on this machine's device of that kind, chosen once."""
    device = torch.device(device_type)
    call = AttentionCall(width, value_width, window, softcap, sinks, dropout)
    facts = device_capability(device), dtype.removeprefix("torch."), call, triton_missing(device)
    return attention_kernel(device_type, *facts)[0]


class RowKernels:
    """The kernels of one model's row-wise work, chosen once per device. ``ran``: those that were called,
    each as ``work kernel`` (see ``plan.model.kernels.row_kernels``).
    """

    def __init__(self) -> None:
        self.ran: set[str] = set()
        self.reason = ""
        self._choice: dict[torch.device, str] = {}

    def triton(self, work: str, *tensors: Tensor) -> bool:
        """Whether a Triton kernel computes ``work`` on these tensors, which is recorded.

        Never on a CPU, in fp64 or on distributed tensors; nor under torch.compile, which joins operations
        itself.
        """
        if not _plain(tensors):
            return False
        choice = self._chosen(tensors[0].device)
        self.ran.add(f"{work} {choice}")
        return choice == TRITON

    def aten(self, work: str, *tensors: Tensor) -> bool:
        """Whether torch's own fused kernel computes ``work`` on these tensors, which is recorded."""
        if not _plain(tensors) or device_capability(tensors[0].device) is None:
            return False
        self.ran.add(f"{work} {ATEN}")
        return True

    def describe(self) -> str:
        """Return the kernels that were called, and why, for the log; empty before the first one."""
        why = f" ({self.reason})" if self.reason else ""
        return f"{', '.join(sorted(self.ran))}{why}" if self.ran else ""

    def _chosen(self, device: torch.device) -> str:
        if device not in self._choice:
            self._choice[device] = self._choose(device)
        return self._choice[device]

    def _choose(self, device: torch.device) -> str:
        missing = triton_missing(device)
        choice, self.reason = row_kernels(device.type, device_capability(device), missing)
        if choice != TRITON:
            return choice
        try:
            operators.rms_norm(torch.ones(2, 8, device=device), torch.ones(8, device=device), 1e-6, 0.0)
        except Exception as error:  # of a compiler, a linker, a driver: whatever it is, eager code computes
            choice, self.reason = EAGER, f"a first Triton kernel failed: {type(error).__name__}: {error}"
        return choice


def _plain(tensors: tuple[Tensor, ...]) -> bool:
    if tensors[0].device.type in ("cpu", "meta") or torch.compiler.is_compiling():
        return False
    return not any(x.dtype == torch.float64 or isinstance(x, DTensor) for x in tensors)


def activate_flash(version: str) -> str:
    """Let torch call this implementation (``flash_version``) from now on; empty: change nothing.

    Returns a note, or an empty text. A package that cannot be imported leaves torch's own
    kernel in place.
    """
    if not version:
        return ""
    from torch.nn.attention import activate_flash_attention_impl

    try:
        activate_flash_attention_impl(version)
    except (
        ImportError,
        RuntimeError,
        OSError,
        AttributeError,
        ValueError,
    ) as exc:  # a build for another torch
        return f"{LABELS[version]} cannot be used, torch's own flash kernel runs: {exc}"
    return f"{LABELS[version]} is in place of torch's own flash kernel"


def active_flash() -> str:
    """Return the implementation that torch calls; empty for its own."""
    from torch.nn.attention import current_flash_attention_impl

    return current_flash_attention_impl() or ""
