"""Loading ahead: the same windows in the same order, errors where they are due, and no thread left behind."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from paceline.config.schema import Config
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.data.data_order import epoch_bins
from paceline.data.packed_source import PackedSource
from paceline.protocols.batch import Batch
from paceline.protocols.window import Window
from paceline.training.loop.window_source import AHEAD, BatchLayout, Prefetcher, WindowSource, count_epochs

CPU = torch.device("cpu")


class Table:
    """20 documents of 3 to 9 tokens, as much of a TokenTable as a PackedSource asks for."""

    def __init__(self) -> None:
        import numpy as np

        self.weights, self.group, self.images = (1.0,), 1, None
        self.columns: dict[str, Any] = {}
        self.lengths = np.array([3 + i % 7 for i in range(20)], np.int32)
        self.group_lengths, self.group_dataset = self.lengths, np.zeros(20, np.int32)

    def room(self, seq_len: int) -> int:
        return seq_len

    def coded(self, document: int) -> Any:
        import numpy as np

        return np.arange(self.lengths[document], dtype=np.int32) + document


def windows(loading: Prefetcher, start: int = 0, source: Any = None) -> WindowSource:
    source = source or PackedSource(Table(), seq_len=16, packing=True, seed=3, pad_token_id=0)  # type: ignore[arg-type]
    cut = BatchLayout(1, 2, 0, 1)
    return WindowSource(source, cut, count_epochs(source, cut.global_batch, 6.0, -1, False), start, loading)


def same(left: Window, right: Window) -> bool:
    mine, other = left.micro_batches, right.micro_batches
    tokens = all(torch.equal(a.input_ids, b.input_ids) for a, b in zip(mine, other, strict=True))
    return tokens and (left.step, left.epoch, left.sample_digest) == (
        right.step,
        right.epoch,
        right.sample_digest,
    )


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("start", [0, 7])
def test_the_windows_are_those_without_threads_in_the_same_order(workers: int, start: int) -> None:
    plain = list(windows(Prefetcher(), start))
    ahead = list(windows(Prefetcher(workers, 3), start))
    assert [w.step for w in ahead] == list(range(start, start + len(ahead))) and len(ahead) == len(plain) > 10
    assert all(map(same, plain, ahead))


def test_items_are_made_ahead_and_no_more_than_asked_for() -> None:
    begun: list[int] = []
    made = Prefetcher(2, 3).in_order(lambda i: begun.append(i) or i, range(100))
    assert next(made) == 0
    made.close()
    assert begun == list(range(len(begun))) and 1 <= len(begun) <= 2 * 3 + 1


def test_a_step_does_not_wait_for_what_is_not_due() -> None:
    gate = threading.Event()

    def make(item: int) -> int:
        if item == 1:
            assert gate.wait(30)
        return item

    made = Prefetcher(1, 1).in_order(make, range(3))
    assert next(made) == 0, "item 1 is being made meanwhile"
    assert any(t.name.startswith("paceline-loading") for t in threading.enumerate())
    gate.set()
    assert list(made) == [1, 2]


def test_threads_work_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=30)

    def make(item: int) -> int:
        both.wait()
        return item

    assert list(Prefetcher(2, 1).in_order(make, range(4))) == [0, 1, 2, 3]


def no_loading_threads() -> bool:
    return not any(t.name.startswith("paceline-loading") for t in threading.enumerate())


@pytest.mark.parametrize("taken", [1, 3])
def test_stopping_early_leaves_no_thread(taken: int) -> None:
    made = Prefetcher(3, 4).in_order(lambda i: i, range(50))
    assert [next(made) for _ in range(taken)] == list(range(taken)) and not no_loading_threads()
    made.close()
    assert no_loading_threads()


@pytest.mark.parametrize(
    "error", [DataError(Diagnostic("data.broken", "a row is broken")), MemoryError("no room")]
)
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_error_comes_by_its_own_name_at_its_own_item(workers: int, error: Exception) -> None:
    def make(item: int) -> int:
        if item == 5:
            raise error
        return item

    seen = []
    with pytest.raises(type(error)) as raised:
        for item in Prefetcher(workers, 2).in_order(make, range(20)):
            seen.append(item)
    assert raised.value is error and seen == [0, 1, 2, 3, 4] and no_loading_threads()


def test_a_layout_is_made_once_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(kwargs["epoch"])
        return epoch_bins(*args, **kwargs)

    monkeypatch.setattr("paceline.data.packed_source.epoch_bins", counted)
    source = PackedSource(Table(), seq_len=16, packing=True, seed=3, pad_token_id=0)  # type: ignore[arg-type]
    list(Prefetcher(4, 4).in_order(lambda i: source.batch(i % 2, [0]), range(40)))
    assert sorted(made) == [0, 1]


# --- what the config asks for


def training(**keys: Any) -> Any:
    return Config.from_json({"training": keys}).training


def test_the_config_s_keys_are_what_loads() -> None:
    asked = training(dataloader_num_workers=3, dataloader_prefetch_factor=5)
    assert Prefetcher.of(asked, CPU) == Prefetcher(3, 5, False, CPU)
    assert Prefetcher.of(training(), CPU) == Prefetcher(0, AHEAD, False, CPU)
    cuda = torch.device("cuda", 1)
    assert Prefetcher.of(training(dataloader_num_workers=2), cuda) == Prefetcher(2, AHEAD, True, cuda)
    assert not Prefetcher.of(training(dataloader_pin_memory=False), cuda).pin


class Recorded:
    """What is asked of CUDA: the tensors that are page-locked, and the device each thread sets before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pinned: list[torch.Tensor] = []
        self.devices: list[tuple[str, torch.device]] = []

        def pin(tensor: torch.Tensor) -> torch.Tensor:
            copy = tensor.clone()
            self.pinned.append(copy)
            return copy

        monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
        monkeypatch.setattr(
            torch.accelerator,
            "set_device_index",
            lambda index: self.devices.append((threading.current_thread().name, torch.device("cuda", index))),
        )

    def has(self, tensor: torch.Tensor) -> bool:
        return any(tensor is pinned for pinned in self.pinned)


def test_what_is_said_of_cuda_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan's sentence about ``dataloader_pin_memory`` is about this: every tensor that is copied to
    the device is page-locked.
    """
    cuda, asked = Recorded(monkeypatch), torch.device("cuda", 3)
    plain = list(windows(Prefetcher()))
    assert not cuda.pinned
    for workers in (0, 2):
        for window, before in zip(
            windows(Prefetcher(workers, 2, pin=True, device=asked)), plain, strict=True
        ):
            assert same(window, before)
            for batch in window.micro_batches:
                assert all(
                    cuda.has(getattr(batch, name)) for name in copied(batch)
                ) and "input_ids" in copied(batch)
                assert cuda.has(batch.cu_seqlens)  # copied too, beside the host's own reads
    names = {name for name, _ in cuda.devices}
    assert len(names) == 2 and all(n.startswith("paceline-loading") for n in names), (
        "each thread chose its device"
    )
    assert {device for _, device in cuda.devices} == {asked}


def copied(batch: Batch) -> list[str]:
    """The fields that ``Batch.to`` moves to another device."""
    moved = batch.to(torch.device("meta"))
    return [name for name in vars(batch) if getattr(getattr(moved, name), "is_meta", False)]


def test_extras_and_token_fields_are_page_locked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Recorded(monkeypatch)
    [window] = [w for w in windows(Prefetcher()) if w.step == 0]
    batch = window.micro_batches[0]
    fields = {"extras": {"margin": torch.ones(2)}, "tokens": {"advantage": torch.ones(1, 4)}}
    pinned = Batch(**{**vars(batch), **fields}).pinned()
    assert cuda.has(pinned.extras["margin"]) and cuda.has(pinned.tokens["advantage"])
