"""A shard of model or optimizer state under its plain model name: the content of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

PARAM = "param"  # a master weight; optimizer states keep the names of torch (exp_avg, step, …)
BUFFER = "buffer"


@dataclass(frozen=True)
class Shard:
    """``tensor`` is the block at ``offsets`` of a tensor of ``global_shape`` that belongs to parameter
    ``name`` of ``role``.

    name          the plain Hugging Face parameter name (``model.layers.0.self_attn.q_proj.weight``), without
                  wrappers
    kind          ``param``, ``buffer``, or the name of an optimizer state (``exp_avg``, ``step``)
    global_shape  shape of the whole tensor; () for scalars
    offsets       start of this block in each dim (all zero for a whole tensor)
    """

    role: str
    name: str
    kind: str
    global_shape: tuple[int, ...]
    offsets: tuple[int, ...]
    tensor: Tensor


class ShardReader(Protocol):
    """Reads any block of the saved tensors, whatever the sharding was when they were saved."""

    def has(self, role: str, name: str, kind: str) -> bool: ...

    def kinds(self, role: str, name: str) -> tuple[str, ...]: ...

    def shape(self, role: str, name: str, kind: str) -> tuple[int, ...]:
        """Return the shape of the whole tensor."""

    def dtype(self, role: str, name: str, kind: str) -> torch.dtype: ...

    def read(self, role: str, name: str, kind: str) -> Tensor:
        """Return the whole tensor on the CPU."""

    def read_block(
        self, role: str, name: str, kind: str, offsets: tuple[int, ...], shape: tuple[int, ...]
    ) -> Tensor:
        """Return the block of ``shape`` at ``offsets``, on the CPU."""
