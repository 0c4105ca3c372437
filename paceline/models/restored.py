"""A model whose weights a checkpoint brings: what it started from is neither read nor drawn from the seed."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from paceline.models.materialise import replace_tensors


@dataclass(frozen=True)
class Unread:
    """``names``: the model's parameters, all of which the checkpoint has. Until it is imported they are NaN:
    one that no import fills is not trained on as if it were a weight.
    """

    names: frozenset[str]
    more: dict[str, Tensor] = field(default_factory=dict)  # nothing

    def grow(self, seed: int) -> None:
        """New rows come from the checkpoint as well."""

    def has(self, name: str) -> bool:
        return name in self.names

    def read(self, name: str, offsets: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Return a block of NaN, fp32."""
        return torch.full(tuple(shape), math.nan)


def unread(hf: nn.Module, restored: Collection[str]) -> Unread | None:
    """Return slices that read nothing if all parameters of ``hf`` (which may be on meta) are ``restored``."""
    names = frozenset(name for name, _ in hf.named_parameters())
    return Unread(names) if restored and names.issubset(restored) else None


@torch.no_grad()
def give_storage(hf: nn.Module, device: torch.device) -> None:
    """Put parameters that are on meta on ``device``, as NaN, and all buffers with them. Ties hold."""
    made: dict[int, Tensor] = {}
    for parameter in hf.parameters():
        if parameter.is_meta:
            values = torch.full(parameter.shape, math.nan, dtype=parameter.dtype, device=device)
            made[id(parameter)] = nn.Parameter(values, parameter.requires_grad)
    replace_tensors(hf, made)
    hf.to(device)
