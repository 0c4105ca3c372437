"""Device, seeds, heartbeat."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from paceline.core.errors import PacelineError
from paceline.runtime.device.device import matmul_rate, memory_bytes, pick_device, sum_dtype
from paceline.runtime.device.host import threads_per_rank
from paceline.runtime.failures.heartbeat import Heartbeat, read_heartbeat
from paceline.runtime.random_seed import seed_for


def test_pick_device() -> None:
    assert pick_device("cpu", 3) == torch.device("cpu")
    with pytest.raises(PacelineError, match="no device named 'tpu'"):
        pick_device("tpu", 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu_is_refused_with_the_reason() -> None:
    with pytest.raises(PacelineError, match="runtime.device"):
        pick_device("cuda", 0)


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose torch sees four Intel devices."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("xpu"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)


@pytest.mark.usefixtures("four")
def test_a_rank_takes_its_own_device_of_whatever_kind_torch_sees() -> None:
    assert pick_device("auto", 2) == pick_device("xpu", 2) == torch.device("xpu", 2)
    assert pick_device("cpu", 2) == torch.device("cpu")
    assert pick_device("xpu", 1, indices=(3, 1)) == torch.device("xpu", 1)
    assert pick_device("xpu", 0, indices=(3, 1)) == torch.device("xpu", 3)
    with pytest.raises(PacelineError, match="there is no XPU device for local rank 4"):
        pick_device("xpu", 4)
    with pytest.raises(PacelineError, match="there is no XPU device for local rank 2"):
        pick_device("xpu", 2, indices=(3, 1))
    with pytest.raises(PacelineError, match="the plan requires CUDA"):
        pick_device("cuda", 0)


@pytest.mark.usefixtures("four")
def test_one_visible_device_a_task_is_every_ranks_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pick_device("xpu", 3, alone=True) == torch.device("xpu", 3), "all are visible: by local rank"
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    assert pick_device("xpu", 3, alone=True) == torch.device("xpu", 0)
    with pytest.raises(PacelineError, match="there is no XPU device for local rank 3"):
        pick_device("xpu", 3)


def test_an_accelerator_that_is_not_driven_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("hpu"))
    with pytest.raises(PacelineError, match="Intel Gaudi is not supported"):
        pick_device("auto", 0)


def test_sums_are_float64_where_it_exists() -> None:
    dtypes = [sum_dtype(torch.device(name)) for name in ("cpu", "cuda", "mps")]
    assert dtypes == [torch.float64, torch.float64, torch.float32]


def test_peak_memory_grows_with_what_is_touched() -> None:
    before = memory_bytes(torch.device("cpu"))
    block = torch.ones(64 * 1024 * 1024, dtype=torch.uint8)
    del block
    again = memory_bytes(torch.device("cpu"))
    assert 10 * 2**20 < before <= again < 2**40


def test_matmul_rate_is_quick_and_plausible() -> None:
    rate = matmul_rate(torch.device("cpu"), torch.float32, seconds=0.05)
    assert 1e8 < rate < 1e15


def test_threads_are_an_even_share() -> None:
    one = threads_per_rank(1)
    assert one >= 1
    assert threads_per_rank(10_000) == 1
    assert threads_per_rank(2) == max(1, one // 2)


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
    deadline = time.monotonic() + 60
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
