"""Packing: nothing lost, nothing too long, little wasted, quickly."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from paceline.data.packing import best_fit_decreasing, efficiency
from paceline.data.random_keys import hash_values, permutation


def alpaca_like(num: int, longest: int, seed: int = 0) -> np.ndarray:
    """Log-normal lengths with mean about 110, by Box-Muller on hashed counters."""
    u = (hash_values(seed, np.arange(2 * num, dtype=np.uint64)) >> np.uint64(11)).astype(
        np.float64
    ) / 2**53 + 1e-12
    normal = np.sqrt(-2 * np.log(u[:num])) * np.cos(2 * math.pi * u[num:])
    return np.clip(np.exp(4.4 + 0.75 * normal), 5, longest).astype(np.int32)


@pytest.mark.parametrize(("num", "seq_len"), [(1, 8), (2, 8), (50, 64), (1000, 100), (3000, 512)])
def test_every_document_in_one_bin_and_no_bin_overfull(num: int, seq_len: int) -> None:
    lengths = alpaca_like(num, seq_len)
    bins = best_fit_decreasing(lengths, seq_len, permutation(3, num))
    assert sorted(bins.items.tolist()) == list(range(num))
    assert all(0 < lengths[bins.bin(b)].sum() <= seq_len for b in range(len(bins)))


def textbook(lengths: list[int], seq_len: int) -> int:
    """How many bins the plain loop of best-fit decreasing needs."""
    room: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [free for free in room if free >= length]
        if fitting:
            room.remove(min(fitting))
        room.append((min(fitting) if fitting else seq_len) - length)
    return len(room)


def test_it_is_best_fit_decreasing() -> None:
    for seed in range(60):
        lengths = (2 + hash_values(seed, np.arange(30, dtype=np.uint64)) % np.uint64(18)).astype(np.int32)
        assert len(best_fit_decreasing(lengths, 31)) == textbook(lengths.tolist(), 31)


def test_rows_are_nearly_full_at_alpaca_lengths() -> None:
    lengths = alpaca_like(20_000, 512)
    assert 100 < lengths.mean() < 120
    assert efficiency(best_fit_decreasing(lengths, 512), lengths, 512) > 0.99


def test_the_order_decides_who_sits_together_but_not_how_many_rows() -> None:
    lengths = alpaca_like(500, 128)
    one, two = (best_fit_decreasing(lengths, 128, permutation(key, 500)) for key in (1, 2))
    assert len(one) == len(two)
    assert [sorted(one.bin(b)) for b in range(len(one))] != [sorted(two.bin(b)) for b in range(len(two))]


def test_no_documents() -> None:
    assert len(best_fit_decreasing(np.empty(0, np.int32), 16)) == 0


def test_many_documents_take_seconds_at_most() -> None:
    lengths = alpaca_like(300_000, 2048)
    started = time.process_time()
    best_fit_decreasing(lengths, 2048, permutation(0, len(lengths)))
    assert time.process_time() - started < 10
