"""The attention kernels of one model: chosen by its device's capability, which is asked once; recorded."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.models.device_facts import device_capability
from paceline.plan.model.attention_kernel import AttentionCall, attention_kernel


class AttentionKernels:
    """``ran``: the names of the kernels that were called (see ``plan.model.attention_kernel``)."""

    def __init__(self) -> None:
        self.ran: set[str] = set()
        self._capability: dict[torch.device, float | None] = {}

    def choose(self, query: Tensor, value: Tensor, *, window: bool, own_scores: bool, dropout: bool) -> str:
        """Return, and record, the kernel for query [1, H, T, D] and value [1, K, T, E]."""
        device = query.device
        if device not in self._capability:
            self._capability[device] = device_capability(device)
        call = AttentionCall(query.shape[-1], value.shape[-1], window, own_scores, dropout)
        dtype = str(query.dtype).removeprefix("torch.")
        name, _ = attention_kernel(device.type, self._capability[device], dtype, call)
        self.ran.add(name)
        return name

    def describe(self) -> str:
        """Return the kernels that were called, for the log; empty before the first forward."""
        return f"; kernels called: {', '.join(sorted(self.ran))}" if self.ran else ""
