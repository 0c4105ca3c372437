"""Device, seeds, heartbeat."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from paceline.core.errors import PacelineError
from paceline.runtime.device import matmul_rate, memory_bytes, pick_device, threads_per_rank
from paceline.runtime.heartbeat import Heartbeat, read_heartbeat
from paceline.runtime.seed import seed_for


def test_pick_device() -> None:
    assert pick_device("cpu", 3) == torch.device("cpu")
    with pytest.raises(PacelineError, match="no device named 'tpu'"):
        pick_device("tpu", 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu_is_refused_with_the_reason() -> None:
    with pytest.raises(PacelineError, match="runtime.device"):
        pick_device("cuda", 0)


def test_peak_memory_grows_with_what_is_touched() -> None:
    before = memory_bytes(torch.device("cpu"))
    block = torch.ones(64 * 1024 * 1024, dtype=torch.uint8)
    del block
    again = memory_bytes(torch.device("cpu"))
    assert 10 * 2**20 < before <= again < 2**40


def test_matmul_rate_is_quick_and_plausible() -> None:
    started = time.perf_counter()
    rate = matmul_rate(torch.device("cpu"), torch.float32, seconds=0.05)
    assert 1e8 < rate < 1e15
    assert time.perf_counter() - started < 10


def test_threads_are_an_even_share() -> None:
    one = threads_per_rank(1)
    assert one >= 1
    assert threads_per_rank(10_000) == 1
    assert threads_per_rank(2) == max(1, one // 2)
    assert threads_per_rank(2, requested=5) == 5


def test_seeds_depend_on_every_coordinate_and_nothing_else() -> None:
    base = seed_for(42, 3, 1, "policy", 2)
    assert base == seed_for(42, 3, 1, "policy", 2)
    others = {
        seed_for(43, 3, 1, "policy", 2),
        seed_for(42, 4, 1, "policy", 2),
        seed_for(42, 3, 2, "policy", 2),
        seed_for(42, 3, 1, "value", 2),
        seed_for(42, 3, 1, "policy", 1),
        seed_for(42, 3, 1, "policy", 2, 1),
        base,
    }
    assert len(others) == 7
    assert all(0 <= s < 2**63 for s in others)
    assert seed_for(0, 0, 0) == seed_for(0), "a pinned run must not change its seeds with a refactoring"


def test_heartbeat_says_what_and_since_when(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.heartbeat"
    heart = Heartbeat(path, interval_seconds=0.01).start()
    heart.beat(7, "train")
    deadline = time.monotonic() + 5
    while (found := read_heartbeat(path)) is None or found["step"] != 7:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert found["phase"] == "train"
    assert found["since"] <= found["time"]
    heart.stop()
    last = read_heartbeat(path)
    assert last is not None
    assert (last["step"], last["phase"]) == (7, "ended")
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_heartbeat_without_a_disk_ends_nothing(tmp_path: Path) -> None:
    heart = Heartbeat(tmp_path / "gone" / "rank.heartbeat", interval_seconds=0.01).start()
    time.sleep(0.05)
    heart.stop()
    assert read_heartbeat(tmp_path / "gone" / "rank.heartbeat") is None
