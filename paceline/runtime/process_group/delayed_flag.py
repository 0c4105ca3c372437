"""A flag of any rank, read a step late so that the host does not wait for its device between two steps."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.plan.hardware.device_kinds import is_accelerator, kind_of
from paceline.runtime.process_group.world import World


class LateFlag:
    """Whether any rank has set its flag: on an accelerator in the call before, else in this one. Collective.

    The flags are reduced on the device and copied to the host asynchronously; a stop request is thus seen by
    all ranks after the same step, one later than it was made. Where the group moves tensors of the host, or
    the device has no events, it is seen in the same step, by a wait. ``before``: what is returned as long as
    no flag has been reduced.
    """

    def __init__(self, world: World, *, before: bool = False) -> None:
        self._world = world
        self._before = before
        self._copied: tuple[Tensor, Any] | None = None

    def __call__(self, flag: bool) -> bool:
        """Return the earlier flags' maximum and start reducing this one."""
        world = self._world
        event = _event(world)
        if event is None:
            return world.any(flag)
        earlier = self._read()
        mine = torch.tensor([int(flag)], dtype=torch.int32).to(world.device, non_blocking=True)
        dist.all_reduce(mine, dist.ReduceOp.MAX)
        copied = mine.to("cpu", non_blocking=True)
        event.record()
        self._copied = copied, event
        return earlier

    def _read(self) -> bool:
        if self._copied is None:
            return self._before
        copied, event = self._copied
        event.synchronize()
        return bool(copied[0])


def _event(world: World) -> Any:
    """Return an event of the device's stream; None if the flag is read without one."""
    own = kind_of(world.device.type)
    if world.world_size == 1 or not is_accelerator(own.name) or world.backend != own.backend:
        return None
    made = getattr(torch.get_device_module(world.device), "Event", None)
    return None if made is None else made()
