"""Ranks that meet through the store: every value to every rank, and nothing that grows with the saves."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from paceline.runtime.process_group.background_exchange import StoreRanks
from paceline.runtime.process_group.signed_store import SignedStore
from paceline.runtime.process_group.world import World


@pytest.mark.parametrize("secret", [b"", b"0123456789abcdef"])
def test_values_of_all_ranks_in_order_and_the_store_does_not_grow(secret: bytes) -> None:
    store = dist.HashStore()
    before = store.num_keys()

    def meet(rank: int) -> list[list[dict[str, object]]]:
        ranks = StoreRanks(SignedStore(store, secret, "run"), rank, 3)
        return [ranks.all_gather_json({"rank": rank, "é": [meeting, None]}) for meeting in range(5)]

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(meet, range(3)))
    expected = [[{"rank": rank, "é": [meeting, None]} for rank in range(3)] for meeting in range(5)]
    assert found == [expected] * 3
    assert store.num_keys() - before <= 1, "only the last answer may still be read"


def test_a_world_of_one_meets_nobody() -> None:
    world = World.single()
    assert StoreRanks.open(world) is world
