"""Read a tensor that several ranks hold alike on one of them, and send it to the others."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.protocols.shard import ShardReader
from paceline.runtime.process_group.world import World


class ReadOnce:
    """A ShardReader of ranks that make the same calls in the same order: all, or those of ``group``.

    They take turns with reading, so a checkpoint is read once for all of them. Collective.
    """

    def __init__(self, reader: ShardReader, world: World, group: dist.ProcessGroup | None = None) -> None:
        self._reader = reader
        self._world = world
        self._group = group
        self._ranks = list(range(world.world_size)) if group is None else dist.get_process_group_ranks(group)
        self._turn = 0

    def has(self, role: str, name: str, kind: str) -> bool:
        return self._reader.has(role, name, kind)

    def kinds(self, role: str, name: str) -> tuple[str, ...]:
        return self._reader.kinds(role, name)

    def shape(self, role: str, name: str, kind: str) -> tuple[int, ...]:
        return self._reader.shape(role, name, kind)

    def dtype(self, role: str, name: str, kind: str) -> torch.dtype:
        return self._reader.dtype(role, name, kind)

    def read(self, role: str, name: str, kind: str) -> Tensor:
        """Return the whole tensor on the CPU."""
        shape = self.shape(role, name, kind)
        return self.read_block(role, name, kind, (0,) * len(shape), shape)

    def read_block(
        self, role: str, name: str, kind: str, offsets: tuple[int, ...], shape: tuple[int, ...]
    ) -> Tensor:
        """Return the block of ``shape`` at ``offsets``, on the CPU."""
        source = self._ranks[self._turn % len(self._ranks)]
        self._turn += 1
        if source == self._world.rank:
            tensor = self._reader.read_block(role, name, kind, offsets, shape).contiguous()
        else:
            tensor = torch.empty(shape, dtype=self.dtype(role, name, kind))
        return self._world.send_tensor(tensor, source, self._group)
