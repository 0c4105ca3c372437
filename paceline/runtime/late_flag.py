"""A flag of any rank, read a step late so that the host does not wait for its device between two steps."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.runtime.world import World


class LateFlag:
    """Whether any rank has set its flag: on an accelerator in the call before, else in this one. Collective.

    The flags are reduced on the device and copied to the host asynchronously; a stop request is thus seen by
    all ranks after the same step, one later than it was made.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._copied: tuple[Tensor, Any] | None = None

    def __call__(self, flag: bool) -> bool:
        """Return the earlier flags' maximum and start reducing this one."""
        world = self._world
        if world.world_size == 1 or world.device.type == "cpu" or world.backend == "gloo":
            return world.any(flag)
        earlier = self._read()
        mine = torch.tensor([int(flag)], dtype=torch.int32).to(world.device, non_blocking=True)
        dist.all_reduce(mine, dist.ReduceOp.MAX)
        copied = mine.to("cpu", non_blocking=True)
        event = getattr(torch, world.device.type).Event()
        event.record()
        self._copied = copied, event
        return earlier

    def _read(self) -> bool:
        if self._copied is None:
            return False
        copied, event = self._copied
        event.synchronize()
        return bool(copied[0])
