"""The attention kernels of one model: chosen by its device's capability, which is asked once; recorded."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.models import flex
from paceline.models.device_facts import device_capability, triton_missing
from paceline.models.flash_impl import active_flash
from paceline.plan.model.attention_kernel import VARLEN_FLASH, AttentionCall, attention_kernel


class AttentionKernels:
    """``ran``: the names of the kernels that were called (see ``plan.model.attention_kernel``)."""

    def __init__(self) -> None:
        self.ran: set[str] = set()
        self._facts: dict[torch.device, tuple[float | None, str]] = {}
        self._flex: flex.FlexCall | None = None
        self.traced = ""  # the kernel that compiled layers were traced with last

    def choose(
        self, query: Tensor, value: Tensor, *, window: bool, softcap: bool, sinks: bool, dropout: bool
    ) -> str:
        """Return, and record, the kernel for query [1, H, T, D] and value [1, K, T, E]."""
        device = query.device
        if device not in self._facts:
            self._facts[device] = device_capability(device), triton_missing(device)
        call = AttentionCall(query.shape[-1], value.shape[-1], window, softcap, sinks, dropout)
        dtype = str(query.dtype).removeprefix("torch.")
        capability, missing = self._facts[device]
        name, _ = attention_kernel(device.type, capability, dtype, call, missing)
        self.ran.add(name)
        return name

    def flex(self) -> flex.FlexCall:
        """Return ``flex_attention``, compiled by the first call of it."""
        if self._flex is None:
            self._flex = flex.compiled_flex()
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
