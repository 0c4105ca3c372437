"""Which rank has which stages, how many micro-batches a schedule takes, and padding that weighs nothing."""

from __future__ import annotations

import pytest
import torch
from tiny_parts import make_batch

from paceline.core.errors import ConfigError
from paceline.strategies.pipeline.schedules import FixedShape, StageLayout


def test_stages_of_ranks() -> None:
    assert [StageLayout("1f1b", 4, 1).own(r) for r in range(4)] == [(0,), (1,), (2,), (3,)]
    assert [StageLayout("interleaved", 2, 2).own(r) for r in range(2)] == [(0, 2), (1, 3)]
    assert [StageLayout("zbv", 3, 2).own(r) for r in range(3)] == [(0, 5), (1, 4), (2, 3)]
    assert StageLayout("zbv", 3, 2).rank_of(5) == 0 and StageLayout("interleaved", 2, 3).rank_of(5) == 1


@pytest.mark.parametrize(
    ("schedule", "ranks", "each"), [("1f1b", 2, 2), ("zbv", 2, 3), ("dualpipe", 2, 2), ("gpipe", 1, 1)]
)
def test_a_pipeline_that_does_not_exist_is_refused(schedule: str, ranks: int, each: int) -> None:
    with pytest.raises(ConfigError, match=r"strategy\.pipeline_schedule"):
        StageLayout(schedule, ranks, each)


def test_micro_batches_that_a_schedule_takes() -> None:
    assert [StageLayout("1f1b", 4, 1).micro_batches(n) for n in (1, 3, 9)] == [1, 3, 9]
    assert [StageLayout("1f1b", 4, 1).kind(n).__name__ for n in (3, 4)] == ["ScheduleGPipe", "Schedule1F1B"]
    assert [StageLayout("interleaved", 2, 2).micro_batches(n) for n in (1, 2, 3, 4, 5, 7)] == [
        1,
        2,
        3,
        4,
        6,
        8,
    ]
    assert [StageLayout("zero_bubble", 4, 2).micro_batches(n) for n in (3, 9, 11)] == [3, 10, 12]


def test_fitting_adds_documents_that_weigh_nothing() -> None:
    batches = [make_batch([1, 2, 3]), make_batch([4])]
    shape = FixedShape.of(batches, packed=True)
    assert (shape.rows, shape.length % 64) == (1, 0)
    for batch in (*batches, shape.empty(batches[0])):
        fitted = shape.fit(batch)
        before = batch.input_ids.shape[1]
        assert fitted.input_ids.shape == fitted.labels.shape == fitted.position_ids.shape == (1, shape.length)
        assert (
            int(fitted.cu_seqlens[-1]) == shape.length
            and len(fitted.document_ids) == len(fitted.cu_seqlens) - 1
        )
        assert (
            torch.equal(fitted.labels[:, :before], batch.labels) and (fitted.labels[:, before:] == -100).all()
        )
        assert (fitted.num_rows, fitted.num_tokens) == (batch.num_rows, batch.num_tokens)
        lengths = (fitted.cu_seqlens[1:] - fitted.cu_seqlens[:-1]).tolist()
        assert max(lengths) <= fitted.max_seqlen == shape.longest  # no document longer than the real ones
        assert fitted.position_ids[0].tolist() == [i for n in lengths for i in range(n)]
    rows = FixedShape.of(batches, packed=False)
    assert (rows.rows, rows.length) == (3, shape.longest)
    assert len(rows.fit(batches[1]).document_ids) == 3 and rows.fit(batches[1]).max_seqlen == rows.length
    assert int(rows.empty(batches[0]).num_labels()) == 0
