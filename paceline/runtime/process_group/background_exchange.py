"""Exchanges between ranks that training does not wait for: a flag read a step late, JSON through the store.

Collectives of a background thread could interleave with training's in another order on each rank. So the
thread uses the store.
"""

from __future__ import annotations

import json
import time
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.core.json_types import NO_UTF8
from paceline.plan.hardware.device_kinds import is_accelerator, kind_of
from paceline.runtime.process_group.rendezvous import connect_store
from paceline.runtime.process_group.signed_store import SignedStore
from paceline.runtime.process_group.world import World


class LateFlag:
    """Whether any rank has set its flag: on an accelerator in the call before, else in this one. Collective.

    The flags are reduced on the device and copied to the host asynchronously. So all ranks see a stop request
    after the same step, one step late. If the group moves host tensors, or the device has no events, the call
    waits and returns this step's flag. ``before``: the result while no flag has been reduced.
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
        # In the main thread, in order with training's own collectives: the same on all ranks.
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
    """Return a new event of the device; None if the flag is read without one."""
    kind = kind_of(world.device.type)
    if world.world_size == 1 or not is_accelerator(kind.name) or world.backend != kind.backend:
        return None
    event_class = getattr(torch.get_device_module(world.device), "Event", None)
    return None if event_class is None else event_class()


T = TypeVar("T")
_POLL_SECONDS = 0.02  # at first, while the ranks are about to meet; then longer, as one of them writes
_LONGEST_POLL_SECONDS = 0.5
_CONNECT_SECONDS = 60.0


class StoreRanks:
    """Exchanges JSON values between the ranks over a separate connection.

    It waits without a limit, as a save may be slow; the alarm ends this process if a rank dies or is silent.
    An exchange's values are removed in the next exchange, when all ranks have read them.
    """

    def __init__(self, store: SignedStore, rank: int, world_size: int, name: str = "save") -> None:
        self.rank = rank
        self.world_size = world_size
        self._store = store
        self._name = name
        self._meeting = 0

    @staticmethod
    def open(world: World, name: str = "save") -> StoreRanks | World:
        """Connect to the run's store; a world of one needs none. ``name``: the thread's task, which keeps its
        keys apart from another thread's. Raises PacelineError.
        """
        if world.world_size == 1:
            return world
        store = connect_store(world.env, min(_CONNECT_SECONDS, world.timeout_seconds), may_host=False)
        signed = SignedStore(store, world.secret, world.env.store_prefix)
        return StoreRanks(signed, world.rank, world.world_size, name)

    def all_gather_json(self, value: T) -> list[T]:
        """Return every rank's value, in rank order, on every rank. JSON types only; tuples arrive as lists.

        Rank 0 gathers and answers, so that a rank reads one key.
        """
        # Exchanges are numbered: a rank that is ahead writes new keys, and does not overwrite what is still
        # read.
        self._meeting += 1
        mine, joint = self._key(self._meeting, self.rank), self._joint(self._meeting)
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        # File names may hold bytes that are no UTF-8: lone surrogates, which the store's strings refuse.
        self._store.set(mine, text.encode("utf-8", NO_UTF8).decode())
        if self.rank == 0:
            keys = [self._key(self._meeting, rank) for rank in range(self.world_size)]
            texts = self._awaited(keys)
            self._store.set(joint, f"[{','.join(texts)}]")
            # All ranks are in this exchange, so all have read the last one's answer.
            self._store.remove([*keys, self._joint(self._meeting - 1)])
        (text,) = self._awaited([joint])
        return json.loads(text)

    def _awaited(self, keys: list[str]) -> list[str]:
        """Wait for texts at all ``keys`` and return them; one with an invalid signature counts as absent."""
        pause = _POLL_SECONDS
        while True:
            if self._store.has(keys):
                texts = self._store.get_all(keys)
                if all(text is not None for text in texts):
                    return [text for text in texts if text is not None]
            time.sleep(pause)
            # A save may take minutes: hundreds of ranks must not ask the store fifty times a second.
            pause = min(1.5 * pause, _LONGEST_POLL_SECONDS)

    def _key(self, meeting: int, rank: int) -> str:
        return f"{self._name}/{meeting}/{rank}"

    def _joint(self, meeting: int) -> str:
        return f"{self._name}/{meeting}/all"
