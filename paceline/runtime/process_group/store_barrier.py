"""The ranks as a thread beside training meets them: through the store, never by a collective.

A collective of such a thread could come between two of training's, in another order on each rank.
"""

from __future__ import annotations

import json
import time
from typing import TypeVar

from paceline.core.json_types import NO_UTF8
from paceline.runtime.process_group.rendezvous import connect_store, name_of
from paceline.runtime.process_group.signed_store import SignedStore
from paceline.runtime.process_group.world import World

T = TypeVar("T")
_POLL_SECONDS = 0.02  # at first, while the ranks are about to meet; then longer, as one of them writes
_LONGEST_POLL_SECONDS = 0.5
_CONNECT_SECONDS = 60.0


class StoreRanks:
    """Exchanges JSON values between the ranks over a connection of its own.

    It waits without a limit, for a save may be slow: the alarm ends this process when a rank has died or is
    silent. Each meeting's values are removed at the next one, which shows that all ranks have read them.
    """

    def __init__(self, store: SignedStore, rank: int, world_size: int, name: str = "save") -> None:
        self.rank = rank
        self.world_size = world_size
        self._store = store
        self._name = name
        self._meeting = 0

    @staticmethod
    def open(world: World, name: str = "save") -> StoreRanks | World:
        """Connect to the run's store; a world of one needs none. ``name``: what the thread does, which keeps
        its meetings apart from another's. Raises PacelineError.
        """
        if world.world_size == 1:
            return world
        store = connect_store(world.env, min(_CONNECT_SECONDS, world.timeout_seconds), may_host=False)
        signed = SignedStore(store, world.secret, name_of(world.env))
        return StoreRanks(signed, world.rank, world.world_size, name)

    def all_gather_json(self, value: T) -> list[T]:
        """Return every rank's value, in rank order, on every rank. JSON types only; tuples arrive as lists.

        Rank 0 gathers and answers, so that a rank reads one key.
        """
        self._meeting += 1
        mine, joint = self._key(self._meeting, self.rank), self._joint(self._meeting)
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        self._store.set(mine, text.encode("utf-8", NO_UTF8).decode())
        if self.rank == 0:
            keys = [self._key(self._meeting, rank) for rank in range(self.world_size)]
            texts = self._awaited(keys)
            self._store.set(joint, f"[{','.join(texts)}]")
            self._store.remove([*keys, self._joint(self._meeting - 1)])
        (text,) = self._awaited([joint])
        found: list[T] = json.loads(text)
        return found

    def _awaited(self, keys: list[str]) -> list[str]:
        """Return the texts at ``keys`` once all are there; one with an invalid signature is as if absent."""
        pause = _POLL_SECONDS
        while True:
            if self._store.has(keys):
                texts = self._store.get_all(keys)
                if all(text is not None for text in texts):
                    return [text for text in texts if text is not None]
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_POLL_SECONDS)

    def _key(self, meeting: int, rank: int) -> str:
        return f"{self._name}/{meeting}/{rank}"

    def _joint(self, meeting: int) -> str:
        return f"{self._name}/{meeting}/all"
