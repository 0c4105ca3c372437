"""Contract 4: the set of rows of a step never depends on how the batch is cut."""

from __future__ import annotations

import math
import random

import pytest
import torch

from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.training.loop.window_source import (
    FILLER,
    BatchLayout,
    WindowSource,
    count_epochs,
    sample_digest,
)


class Rows:
    """``sizes[e]`` rows in epoch e; row p of epoch e is document 1000 e + p."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes

    def num_rows(self, epoch: int) -> int:
        return self.sizes[min(epoch, len(self.sizes) - 1)]

    def document_ids(self, epoch: int, positions: list[int]) -> list[int]:
        return [1000 * epoch + p for p in positions]

    def batch(self, epoch: int, positions: list[int]) -> Batch:
        ids = [1000 * epoch + p if p != FILLER else -1 for p in positions]
        n = len(ids)
        flat = torch.zeros(1, 2 * n, dtype=torch.int64)
        real = sum(i >= 0 for i in ids)
        return Batch(
            flat,
            flat + IGNORE_INDEX,
            flat,
            torch.arange(0, 2 * n + 1, 2, dtype=torch.int32),
            2,
            torch.tensor(ids),
            real,
        )


def ids_of_run(rows: Rows, dp: int, micro: int, accumulation: int, epochs: float) -> list[list[int]]:
    """The sorted document ids of each global step, all ranks together."""
    cuts = [BatchLayout(micro, accumulation, d, dp) for d in range(dp)]
    table = count_epochs(rows, cuts[0].global_batch, epochs, -1, False)
    steps: list[list[int]] = [[] for _ in range(table.total_steps)]
    for cut in cuts:
        for window in WindowSource(rows, cut, table, 0):
            for batch in window.micro_batches:
                steps[window.step] += [i for i in batch.document_ids.tolist() if i >= 0]
    return [sorted(s) for s in steps]


def test_every_row_once_an_epoch_and_the_same_steps_under_any_cut() -> None:
    rows = Rows(37)
    reference = ids_of_run(rows, 1, 8, 1, 2.0)
    assert sorted(sum(reference[:5], [])) == list(range(37))
    for dp, micro, accumulation in ((2, 4, 1), (4, 2, 1), (2, 2, 2), (1, 1, 8), (8, 1, 1)):
        assert ids_of_run(rows, dp, micro, accumulation, 2.0) == reference


def test_epochs_of_different_length_are_located() -> None:
    rows = Rows(10, 13, 9)
    table = count_epochs(rows, 4, 3.0, -1, False)
    assert table.total_steps == 10
    assert [table.locate(s) for s in (0, 2, 3, 6, 7, 9)] == [(0, 0), (0, 2), (1, 0), (1, 3), (2, 0), (2, 2)]
    assert table.is_epoch_end(3) and not table.is_epoch_end(4) and table.is_epoch_end(7)
    assert table.progress(3) == 1.0 and table.progress(5) == 1.5


@pytest.mark.parametrize(
    ("epochs", "max_steps", "drop_last", "total"),
    [(2.5, -1, False, 8), (1.0, -1, True, 2), (1.0, 7, False, 7), (1.0, 2, False, 2), (0.5, -1, False, 2)],
)
def test_length_of_a_run(epochs: float, max_steps: int, drop_last: bool, total: int) -> None:
    assert count_epochs(Rows(10), 4, epochs, max_steps, drop_last).total_steps == total


@pytest.mark.parametrize("max_steps", [7, 10**9, 2**62])
def test_a_given_number_of_steps_asks_for_an_epoch_when_it_comes(max_steps: int) -> None:
    asked: list[int] = []

    class Counted(Rows):
        def num_rows(self, epoch: int) -> int:
            asked.append(epoch)
            return super().num_rows(epoch)

    table = count_epochs(Counted(10, 13, 9), 4, 3.0, max_steps, False)
    assert asked == [0] and table.total_steps == max_steps
    assert table.locate(6) == (1, 3) and table.is_epoch_end(7) and asked == [0, 1]
    assert table.locate(0) == (0, 0) and asked == [0, 1], "what is known is not asked again"


def test_too_few_rows_with_drop_last_gives_no_steps() -> None:
    assert count_epochs(Rows(3), 4, 3.0, -1, True).total_steps == 0


def test_resuming_reads_the_same_windows() -> None:
    rows, cut = Rows(30, 31), BatchLayout(2, 2, 1, 2)
    table = count_epochs(rows, cut.global_batch, 2.0, -1, False)
    whole = list(WindowSource(rows, cut, table, 0))
    for start in (1, random.Random(0).randrange(2, table.total_steps), table.total_steps):
        rest = list(WindowSource(rows, cut, table, start))
        assert [w.sample_digest for w in rest] == [w.sample_digest for w in whole[start:]]
        assert [b.document_ids.tolist() for w in rest for b in w.micro_batches] == [
            b.document_ids.tolist() for w in whole[start:] for b in w.micro_batches
        ]


def test_the_digest_does_not_depend_on_the_ranks() -> None:
    rows = Rows(20)
    for dp in (1, 2, 4):
        cut = BatchLayout(8 // dp, 1, dp - 1, dp)
        table = count_epochs(rows, 8, 1.0, -1, False)
        digests = [w.sample_digest for w in WindowSource(rows, cut, table, 0)]
        assert digests == [
            sample_digest(list(range(8))),
            sample_digest(list(range(8, 16))),
            sample_digest(list(range(16, 20))),
        ]
    assert len(set(digests)) == math.ceil(20 / 8)
