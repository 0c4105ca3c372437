"""Weights that stay on the device scale the losses by the same bits as numbers of the host."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.runtime.process_group.world import World
from paceline.strategies.window.weights import WindowWeights, scaled


class Summed:
    """A world whose other ranks have counted ``others``."""

    def __init__(self, others: list[int], size: int = 2) -> None:
        self.others, self.world_size, self.device = torch.tensor(others), size, torch.device("cpu")

    def all_reduce_tensor(self, values: torch.Tensor) -> torch.Tensor:
        return values + self.others


def window(world: Any, copies: int = 1, **own: int) -> WindowWeights:
    batches = [SimpleNamespace(num_tokens=10), SimpleNamespace(num_tokens=20)]
    algorithm: Any = SimpleNamespace(weights=lambda batch: own)
    return WindowWeights(batches, algorithm, world, copies)  # type: ignore[arg-type]


def test_they_are_summed_over_ranks_and_each_row_is_counted_once() -> None:
    found = window(Summed([4, 16, 30]), copies=2, b=7, a=2)
    assert found.terms == ["a", "b"] and found.any()
    assert found.named() == found.named(found.on_device()) == ({"a": 4, "b": 15}, 30)
    assert {t: float(s) for t, s in found.scales(3.0).items()} == {"a": 3.0 / 4, "b": 3.0 / 15}


def test_alone_they_are_numbers() -> None:
    found = window(World.single(), a=3, b=0)
    assert found.scales(1.0) == {"a": 1.0 / 6, "b": 0.0} and not found.on_device()
    assert found.named([]) == ({"a": 6, "b": 0}, 30)


def test_whether_anything_is_to_be_learnt_is_asked_of_others_only_by_who_has_nothing() -> None:
    unread = window(Summed([0, 0]), a=1)
    unread._sums = SimpleNamespace(tolist=lambda: pytest.fail("waited for"))  # type: ignore[assignment]
    assert unread.any()
    assert window(Summed([5, 0]), a=0).any() and not window(Summed([0, 9]), a=0).any()
    assert not window(World.single(), a=0).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_loss_is_scaled_by_the_same_bits(dtype: torch.dtype) -> None:
    draw = random.Random(3)
    for _ in range(300):
        weight, factor = draw.randrange(1, 2**24), float(draw.randrange(1, 64))
        value = torch.tensor(draw.uniform(-1e6, 1e6), dtype=dtype, requires_grad=True)
        [scale] = window(Summed([weight - 2, 0]), a=1).scales(factor).values()
        here, there = scaled(value, scale), scaled(value, factor / weight)
        assert torch.equal(here, there) and here.dtype is dtype
        [g] = torch.autograd.grad(here, value)
        [h] = torch.autograd.grad(there, value)
        assert torch.equal(g, h)
