"""Contract 4: every document once an epoch, whatever the world size; any position can be asked for alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from data_fixtures import make_table

from paceline.core.errors import DataError
from paceline.data.data_order import epoch_documents, positions_for, step_positions, steps_per_epoch
from paceline.data.packed_source import PackedSource, build_batch
from paceline.data.preflight.check_sets import check_feeds
from paceline.data.random_keys import permutation
from paceline.protocols.batch import IGNORE_INDEX

LENGTHS = [int(n) for n in 3 + permutation(11, 97) % 29]


def source(path: Path, **changes: object) -> PackedSource:
    settings: dict = {"seq_len": 32, "packing": True, "seed": 5, "pad_token_id": 7, **changes}
    return PackedSource(make_table(path / "t.arrow", LENGTHS), **settings)


def ids_seen(rows: PackedSource, epoch: int, dp: int, micro: int, accumulation: int) -> list[int]:
    """Document ids in the order steps consume them, all ranks together."""
    seen: list[int] = []
    num_rows = rows.num_rows(epoch)
    for step in range(steps_per_epoch(num_rows, dp * micro * accumulation, drop_last=False)):
        for j in range(accumulation):
            for rank in range(dp):
                batch = rows.batch(epoch, positions_for(step, j, rank, dp, micro, accumulation))
                seen += [i for i in batch.document_ids.tolist() if i >= 0]
    return seen


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize(
    ("dp", "micro", "accumulation"),
    [(1, 1, 1), (1, 8, 1), (2, 4, 1), (2, 2, 2), (4, 2, 1), (3, 5, 2), (8, 16, 1)],
)
def test_every_document_once_an_epoch(
    tmp_path: Path, packing: bool, dp: int, micro: int, accumulation: int
) -> None:
    rows = source(tmp_path, packing=packing)
    assert sorted(ids_seen(rows, 1, dp, micro, accumulation)) == list(range(len(LENGTHS)))


def test_equal_global_batch_means_equal_steps_on_any_world_size(tmp_path: Path) -> None:
    rows = source(tmp_path)
    splits = [(1, 8, 1), (2, 4, 1), (2, 2, 2), (4, 1, 2), (8, 1, 1)]
    assert len({tuple(ids_seen(rows, 0, *split)) for split in splits}) == 1


def test_the_micro_batches_of_a_step_tile_its_positions() -> None:
    got = [p for j in range(3) for d in range(4) for p in positions_for(5, j, d, 4, 2, 3)]
    assert got == list(step_positions(5, 24, 999)) == list(range(120, 144))
    assert list(step_positions(5, 24, 125)) == list(range(120, 125))


def test_a_position_is_the_same_asked_alone_or_after_others(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    fresh, used = source(tmp_path), source(tmp_path / "again")
    for epoch in (0, 1, 2):
        used.batch(epoch, [0, 1, 2])
    want, got = used.batch(1, [7, 3]), fresh.batch(1, [7, 3])
    assert got.document_ids.tolist() == want.document_ids.tolist() == fresh.document_ids(1, [7, 3])
    assert got.input_ids.equal(want.input_ids)


def test_epochs_and_seeds_differ_and_evaluation_keeps_the_order(tmp_path: Path) -> None:
    rows = source(tmp_path, packing=False)
    everything = list(range(rows.num_rows(0)))
    first, second = rows.document_ids(0, everything), rows.document_ids(1, everything)
    assert first != second
    assert sorted(first) == sorted(second)
    unshuffled = PackedSource(rows.table, seq_len=32, packing=False, seed=5, pad_token_id=7, shuffle=False)
    assert unshuffled.document_ids(3, everything) == everything


def test_the_order_is_pinned() -> None:
    """Runs resumed under another version must see the same order: change ORDER_ALGORITHM when this
    changes.
    """
    assert permutation(42, 12).tolist() == [4, 2, 6, 5, 0, 7, 10, 8, 1, 3, 11, 9]


def test_batches_are_flat_with_shifted_labels(tmp_path: Path) -> None:
    rows = source(tmp_path)
    batch = rows.batch(0, [*range(10), -1, 10_000])
    ends = batch.cu_seqlens.tolist()
    assert batch.num_rows == 10
    assert batch.document_ids.tolist()[-2:] == [-1, -1]
    assert ends[-1] == batch.input_ids.shape[1] == batch.labels.shape[1] == batch.position_ids.shape[1]
    assert batch.max_seqlen == int(np.diff(ends).max())
    for number, (start, end) in enumerate(zip(ends, ends[1:], strict=False)):
        document = int(batch.document_ids[number])
        ids, labels = batch.input_ids[0, start:end].tolist(), batch.labels[0, start:end].tolist()
        assert batch.position_ids[0, start:end].tolist() == list(range(end - start))
        if document < 0:
            assert (ids, labels) == ([7, 7], [IGNORE_INDEX] * 2)
            continue
        want = [1000 * document + j for j in range(LENGTHS[document])]
        assert ids == want
        learnt = want[1:] if document % 2 else [IGNORE_INDEX, *want[2:]]
        assert labels == [*learnt, IGNORE_INDEX]
    assert batch.num_tokens == sum(LENGTHS[i] for i in batch.document_ids.tolist() if i >= 0)


def test_a_document_longer_than_a_row_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.document_too_long"):
        source(tmp_path, seq_len=16).num_rows(0)


def test_weights_draw_whole_copies_and_a_hashed_rest() -> None:
    which = np.repeat(np.array([0, 1, 2], np.int32), [100, 50, 30])
    first = epoch_documents(which, (0.25, 2.5, 1.0), 3, 0)
    times = np.bincount(first, minlength=180)
    assert [int(times[which == d].sum()) for d in range(3)] == [25, 125, 30]
    assert [sorted(set(times[which == d].tolist())) for d in range(3)] == [[0, 1], [2, 3], [1]]
    second = epoch_documents(which, (0.25, 2.5, 1.0), 3, 1)
    assert first.tolist() != second.tolist()
    assert epoch_documents(which, (0.25, 2.5, 1.0), 3, 0).tolist() == first.tolist()


def test_a_mixture_in_the_source_leaves_out_and_repeats(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t.arrow", [10] * 40, datasets=[0] * 20 + [1] * 20, weights=(0.5, 2.0))
    rows = PackedSource(table, seq_len=32, packing=True, seed=5, pad_token_id=7)
    drawn = rows.document_ids(0, list(range(rows.num_rows(0))))
    assert (sum(i < 20 for i in drawn), sum(i >= 20 for i in drawn)) == (10, 40)
    whole = PackedSource(table, seq_len=32, packing=True, seed=5, pad_token_id=7, shuffle=False)
    assert sorted(whole.document_ids(0, list(range(whole.num_rows(0))))) == list(range(40))


def test_too_few_rows_for_the_processes() -> None:
    assert check_feeds(4, 4) == []
    assert check_feeds(3, 4)[0].code == "data.too_few_rows"
    assert steps_per_epoch(10, 4, drop_last=False) == 3
    assert steps_per_epoch(10, 4, drop_last=True) == 2


def _parts(row: np.ndarray) -> tuple[list[int], list[int]]:
    """A coded document: (prompt, answer), the answer beginning at the first label."""
    first = next(i for i, token in enumerate(row.tolist()) if token >= 0)
    return row.tolist()[:first], row.tolist()[first:]


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_mismatched_answers_are_those_of_the_step_however_it_is_split(
    tmp_path: Path, packing: bool, size: int
) -> None:
    rows = source(tmp_path, packing=packing)
    count = rows.num_rows(1)
    for together in (range(6), range(count - 3, count)):
        ids = rows.document_ids(1, list(together))
        before = dict(zip(ids, [ids[-1], *ids[:-1]], strict=True))
        for start in range(0, len(together), size):
            part = list(together[start : start + size])
            own = rows.document_ids(1, part)
            joined = [_parts(rows.table.coded(d))[0] + _parts(rows.table.coded(before[d]))[1] for d in own]
            filler = [np.full(2, ~7, np.int32)]
            wanted = build_batch([np.array(j[:32], np.int32) for j in joined] + filler, [*own, -1], len(part))
            batch = rows.mismatched(1, [*part, -1], together)
            assert torch.equal(batch.input_ids, wanted.input_ids) and torch.equal(batch.labels, wanted.labels)
            assert (batch.document_ids.tolist(), batch.num_rows) == ([*own, -1], len(part))
            assert torch.equal(batch.cu_seqlens, wanted.cu_seqlens) and batch.max_seqlen <= 32
