"""A piece of model or optimizer state under its plain-model name: what checkpoints are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

PARAM = "param"  # kind of a master weight; optimizer moments carry torch's own names (exp_avg, exp_avg_sq, step, momentum_buffer, …)
BUFFER = "buffer"


@dataclass(frozen=True)
class Shard:
    """``tensor`` is the block at ``offsets`` of a tensor of ``global_shape`` that belongs to parameter ``name`` of ``role``.

    name          the plain Hugging Face parameter name (``model.layers.0.self_attn.q_proj.weight``), whatever wrapped it
    kind          ``param``, ``buffer``, or an optimizer state's name (``exp_avg``, ``step``)
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
    """Reads back what shards wrote, any block of it, whatever the sharding was when it was saved."""

    def has(self, role: str, name: str, kind: str) -> bool: ...

    def kinds(self, role: str, name: str) -> tuple[str, ...]: ...

    def shape(self, role: str, name: str, kind: str) -> tuple[int, ...]:
        """Shape of the whole tensor."""
        ...

    def read(self, role: str, name: str, kind: str) -> Tensor:
        """The whole tensor on the CPU."""
        ...

    def read_block(self, role: str, name: str, kind: str, offsets: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
        """The block of ``shape`` at ``offsets``, on the CPU."""
        ...
