"""On-policy distillation's rows: the same documents are answered under any cut of a step, and an answer of
the student's is learnt as the data's is.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from paceline.config.sections.algorithms.supervised import DistillationOptions
from paceline.config.sections.training import TrainingSection
from paceline.core.errors import DataError
from paceline.data.packed_source import build_batch
from paceline.generation.engine import Completion, Request, RolloutSampling
from paceline.generation.sampling.noise import stream_of
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.training.loop.window_source import BatchLayout, WindowSource, count_epochs
from paceline.training.rollout.generate import Limits
from paceline.training.rollout.on_policy_distillation import (
    OwnAnswers,
    chosen,
    coded_documents,
    own_answers,
    prompt_length,
)

ROWS = 24
SEQ_LEN = 16


def document(i: int) -> np.ndarray:
    """Two turns: what is learnt of the first is part of the second's prompt."""
    prompt, answer = [~(10 + i), ~11, 12, ~13, ~14], [15] * (1 + i % 3)
    return np.array([*prompt, *answer, ~9], np.int32)


class Rows:
    """Document p is row p in every epoch."""

    def num_rows(self, epoch: int) -> int:
        return ROWS

    def document_ids(self, epoch: int, positions: list[int]) -> list[int]:
        return [p if 0 <= p < ROWS else -1 for p in positions]

    def batch(self, epoch: int, positions: list[int]) -> Batch:
        ids = self.document_ids(epoch, positions)
        return build_batch(
            [document(i) if i >= 0 else np.full(2, ~0, np.int32) for i in ids], ids, sum(i >= 0 for i in ids)
        )


class Speaker:
    """Says a few tokens that follow from the request alone."""

    def generate(self, requests: list[Request], sampling: RolloutSampling) -> list[Completion]:
        said = [
            tuple(100 + (r.stream >> i) % 50 for i in range(min(r.max_tokens, 1 + r.stream % 4)))
            for r in requests
        ]
        return [Completion(tokens, torch.zeros(len(tokens)), len(tokens) < 3) for tokens in said]


class Strategy:
    """One rank's: counts how often the whole model was there."""

    world = SimpleNamespace(all_reduce_sum_float=list, device=torch.device("cpu"))
    generated = 0

    @contextmanager
    def generating(self, handle: Any) -> Any:
        Strategy.generated += 1
        yield handle


def run(
    fraction: float,
    cut: BatchLayout,
    epochs: float = 1.0,
    start: int = 0,
    longest: int = 4,
    seq_len: int = SEQ_LEN,
) -> OwnAnswers:
    source: Any = Rows()
    rows = WindowSource(source, cut, count_epochs(source, cut.global_batch, epochs, -1, False), start)
    made: Any = OwnAnswers(
        rows,
        Strategy(),
        None,
        lambda root: Speaker(),
        fraction,
        RolloutSampling(),
        Limits(longest, seq_len),
        7,
    )  # type: ignore[arg-type]
    return made


def documents(answers: OwnAnswers) -> dict[tuple[int, int], list[int]]:
    """(step, document) → its tokens, those that are learnt as they are."""
    found = {}
    for window in answers:
        for batch in window.micro_batches:
            for i, coded in zip(batch.document_ids.tolist(), coded_documents(batch), strict=True):
                if i >= 0:
                    found[window.step, i] = coded.tolist()
    return found


def test_the_same_answers_under_any_cut_and_after_a_resume() -> None:
    whole = documents(run(0.5, BatchLayout(8, 1, 0, 1), epochs=2))
    kept = [key for key, coded in whole.items() if coded == document(key[1]).tolist()]
    assert 10 < len(kept) < 38 and len(whole) == 2 * ROWS
    assert {i for step, i in kept if step < 3} != {i for step, i in kept if step >= 3}, (
        "each epoch draws anew"
    )
    for micro, accumulation, ranks in ((2, 4, 1), (4, 1, 2), (1, 2, 4)):
        parts: dict[tuple[int, int], list[int]] = {}
        for rank in range(ranks):
            parts |= documents(run(0.5, BatchLayout(micro, accumulation, rank, ranks), epochs=2))
        assert parts == whole
    resumed = documents(run(0.5, BatchLayout(8, 1, 0, 1), epochs=2, start=2))
    assert resumed == {key: coded for key, coded in whole.items() if key[0] >= 2}


def test_an_own_answer_follows_the_prompt_and_is_all_that_is_learnt() -> None:
    for (_, i), coded in documents(run(1.0, BatchLayout(8, 1, 0, 1))).items():
        prompt, answer = np.array(coded[:5]), coded[5:]
        assert (prompt < 0).all() and (~prompt).tolist() == [10 + i, 11, 12, 13, 14]
        assert 1 <= len(answer) <= 4 and all(100 <= token < 150 for token in answer)
    [window] = run(1.0, BatchLayout(ROWS, 1, 0, 1))
    [batch] = window.micro_batches
    assert window.report is not None and window.report.metrics["own_answers"] == ROWS == batch.num_rows
    assert window.report.metrics["completion_length"] * ROWS == int(batch.num_labels())
    starts = batch.cu_seqlens[:-1].tolist()
    assert [batch.labels[0, s + 4].item() == batch.input_ids[0, s + 5].item() for s in starts] == [
        True
    ] * ROWS


def test_the_batch_is_that_of_data_which_holds_these_answers() -> None:
    [window] = run(1.0, BatchLayout(ROWS, 1, 0, 1))
    [batch] = window.micro_batches
    requests = [Request((10 + i, 11, 12, 13, 14), stream_of(7, 0, i, 0), 4) for i in range(ROWS)]
    said = [completion.tokens for completion in Speaker().generate(requests, RolloutSampling())]
    rows = [
        np.array([*(~t for t in r.prompt), *tokens], np.int32)
        for r, tokens in zip(requests, said, strict=True)
    ]
    offline = build_batch(rows, list(range(ROWS)), ROWS)
    assert all(
        torch.equal(getattr(batch, n), getattr(offline, n))
        for n in ("input_ids", "labels", "position_ids", "cu_seqlens", "document_ids")
    )
    assert (batch.max_seqlen, batch.num_rows, batch.group) == (offline.max_seqlen, ROWS, 1)


def test_a_fraction_of_0_changes_nothing_and_1_every_document() -> None:
    none = documents(run(0.0, BatchLayout(8, 1, 0, 1)))
    assert none == {(i // 8, i): document(i).tolist() for i in range(ROWS)}
    [window] = run(0.0, BatchLayout(ROWS, 1, 0, 1))
    assert window.report is not None and window.report.metrics["own_answers"] == 0
    assert all(chosen(3, e, i, 1.0) and not chosen(3, e, i, 0.0) for e in range(3) for i in range(99))
    assert 0.25 < sum(chosen(3, 0, i, 0.3) for i in range(2000)) / 2000 < 0.35


def test_every_rank_takes_part_with_nothing_of_its_own_to_write() -> None:
    before = Strategy.generated
    assert len(list(run(0.0, BatchLayout(8, 1, 0, 1)))) == Strategy.generated - before == 3


def test_an_answer_has_the_room_that_its_prompt_leaves() -> None:
    lengths = [
        len(coded) for coded in documents(run(1.0, BatchLayout(8, 1, 0, 1), longest=99, seq_len=7)).values()
    ]
    assert max(lengths) == 7
    assert max(len(c) for c in documents(run(1.0, BatchLayout(8, 1, 0, 1), longest=1)).values()) == 6


@pytest.mark.parametrize(
    "coded, length",
    [
        ([~5, ~6, 7, 8], 2),
        ([~5, ~6, 7, ~8, ~9, 1, ~2], 5),
        ([5, 6, 7], 0),
        ([~5, 6, 7], 0),
        ([~5, ~6], 0),
    ],
)
def test_a_prompt_ends_where_the_last_learnt_run_begins(coded: list[int], length: int) -> None:
    assert prompt_length(np.array(coded, np.int32)) == length


def test_a_filler_and_a_document_without_a_prompt_stay() -> None:
    batch = build_batch([np.array([5, 6, 7], np.int32), np.full(2, ~0, np.int32)], [3, -1], 1)
    assert [prompt_length(d) for d in coded_documents(batch)] == [0, 0]
    assert (batch.labels == IGNORE_INDEX).sum() == 3


def test_rows_that_have_no_prompt_at_all_are_refused() -> None:
    training = TrainingSection(
        algorithm="distillation", distillation=DistillationOptions(lmbda=0.5, teacher_model="t")
    )
    table: Any = [np.array([5, 6, 7], np.int32)]
    source: Any = SimpleNamespace(table=SimpleNamespace(__len__=None, coded=table.__getitem__))
    source.table = type("Table", (), {"__len__": lambda self: 1, "coded": lambda self, i: table[i]})()
    plan: Any = SimpleNamespace(algorithm="distillation", seq_len=SEQ_LEN)
    with pytest.raises(DataError) as caught:
        own_answers(None, source, plan, training, None, Strategy(), None)  # type: ignore[arg-type]
    assert [d.code for d in caught.value.diagnostics] == ["training.no_prompts"]
    table[0] = document(0)
    made = own_answers(None, source, plan, training, None, Strategy(), None)  # type: ignore[arg-type]
    assert (made.fraction, made.limits, made.sampling.temperature) == (0.5, Limits(128, SEQ_LEN), 1.0)


def test_generation_is_asked_of_the_spec() -> None:
    spec = algorithm_spec("distillation")
    training = TrainingSection(
        algorithm="distillation", distillation=DistillationOptions(lmbda=0.25, sampling_temperature=0.0)
    )
    options = spec.generation(training)
    assert options is not None and (options.temperature, options.max_completion_length) == (0.0, 128)
    assert (
        spec.generation(TrainingSection(algorithm="distillation")) is None
        and spec.own_fraction(training) == 0.25
    )
    assert algorithm_spec("sft").generation(TrainingSection()) is None
    assert algorithm_spec("grpo").generation(TrainingSection(algorithm="grpo")) is not None
