"""A rank that waits past a limit asks the store for as much, however many ranks there are."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from paceline.launch.network import free_port
from paceline.plan.timeouts import Limit, WaitLimits
from paceline.runtime.failures import alarm as alarms
from paceline.runtime.failures import stragglers
from paceline.runtime.failures.alarm import Alarm
from paceline.runtime.failures.last_heard import HeartbeatRecord
from paceline.runtime.failures.stragglers import Collective
from paceline.runtime.process_group.rendezvous import alive_key, connect_store
from paceline.runtime.process_group.world import World
from paceline.runtime.rank_env import RankEnv

LIMITS = WaitLimits(*(Limit(seconds, key) for seconds, key in ((500, "start"), (1, "step"), (500, "rest"))))


class Counted:
    """A store that counts the keys that are read."""

    def __init__(self, store: dist.Store, read: Counter[str]) -> None:
        self._store, self._read = store, read

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(keys: str | list[str], *rest: object) -> object:
            if name in ("get", "multi_get", "check"):
                self._read.update([keys] if isinstance(keys, str) else keys)
            return getattr(self._store, name)(keys, *rest)

        return call


def world(rank: int, size: int, port: int) -> World:
    env = RankEnv(rank, rank, size, size, master_port=port, one_host=True)
    return World(rank, rank, size, 1, torch.device("cpu"), "none", None, env, 60.0)


def keys_read(size: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What rank 1 reads while rank 0 listens and the others, which save, let it wait."""
    port, read = free_port(), Counter[str]()
    store = connect_store(world(0, size, port).env, 60)
    for rank in range(2, size):
        store.set(alive_key(rank), HeartbeatRecord(1, 3, "save").text())
    first = Alarm(world(0, size, port), doing=lambda: (3, "save"), limits=LIMITS).start()
    monkeypatch.setattr(alarms, "connect_store", lambda *a, **k: Counted(connect_store(*a, **k), read))
    waits = Alarm(world(1, size, port), doing=lambda: (3, "save"), limits=LIMITS).start()
    deadline = time.monotonic() + 240
    while read["roll_call"] < 8:
        assert time.monotonic() < deadline, read
        time.sleep(0.1)
    waits.stop()
    first.stop()
    monkeypatch.undo()
    return read


def test_a_rank_that_waits_reads_the_same_keys_in_any_world(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[Counter[str]]()
    for size in (4, 400):
        monkeypatch.setattr(stragglers, "active", lambda: [Collective("all_reduce", 7, "0", "", 9.0)])
        found.append(keys_read(size, monkeypatch))
    assert set(found[0]) == set(found[1]) and "alive/0" in found[0] and "alive/2" not in found[0]
