"""bitsandbytes' 4-bit layer for an emulated device: its tensors by size, with numbers that mean nothing.

Its own ``Params4bit`` is a class of tensors, and an emulated tensor is of another.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import bitsandbytes
import pytest
import torch
from torch import nn


class PackedLinear(nn.Module):
    """A weight that is packed when it is moved: half a byte an element, a scale of a byte a block of 64."""

    def __init__(self, inside: int, outside: int, **options: Any) -> None:
        super().__init__()
        self.weight: Any
        self.double = options["compress_statistics"]
        self.bias: nn.Parameter | None = None
        self.quant_state: Any = None

    def to(self, device: Any) -> PackedLinear:  # type: ignore[override]
        whole = self.weight
        blocks = -(-whole.numel() // 64)

        def empty(count: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(count, dtype=dtype, device=device)

        packed = empty((whole.numel() + 1) // 2, torch.uint8)
        if self.double:
            second = SimpleNamespace(absmax=empty(-(-blocks // 256), torch.float32))
            scales = empty(blocks, torch.uint8)
            self.quant_state = SimpleNamespace(absmax=scales, nested=True, state2=second)
        else:
            self.quant_state = SimpleNamespace(absmax=empty(blocks, torch.float32), nested=False)
        self.weight = nn.Parameter(packed, requires_grad=False)
        return self


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``models.quantised`` make ``PackedLinear``."""
    monkeypatch.setattr(bitsandbytes.nn, "Linear4bit", PackedLinear)
    monkeypatch.setattr(bitsandbytes.nn, "Params4bit", lambda weight, **_: nn.Parameter(weight, False))
