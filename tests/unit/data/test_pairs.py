"""Preference pairs: every form read alike, both halves together from the file to the batch, bad rows
named.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_fixtures import make_tokenizer, prepared_from, write_jsonl
from transformers import AutoTokenizer

from paceline.core.errors import DataError
from paceline.data.packed_source import PackedSource
from paceline.data.prepare.prepare import Prepared
from paceline.data.rows.formats import Example
from paceline.data.rows.kinds.preference_pairs import PAIRS, turns_in
from paceline.data.rows.values import RowError
from paceline.data.token_table import decode_labels
from paceline.protocols.batch import IGNORE_INDEX

USER, GOOD, BAD = (
    {"role": "user", "content": "q?"},
    {"role": "assistant", "content": "yes"},
    {"role": "assistant", "content": "no"},
)
FORMS: list[dict[str, Any]] = [
    {"prompt": "q?", "chosen": "yes", "rejected": "no"},
    {"question": "q?", "chosen": "yes", "rejected": "no", "source": "x"},
    {"instruction": "q?", "input": "", "chosen": "yes", "rejected": "no"},
    {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
    {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
    {"prompt": "q?", "chosen": [GOOD], "rejected": [BAD], "messages": [USER]},
    {
        "conversations": [{"from": "human", "value": "q?"}],
        "chosen": {"from": "gpt", "value": "yes"},
        "rejected": {"from": "gpt", "value": "no"},
    },
    {"prompt": "q?", "chosen": [USER, GOOD], "rejected": [USER, BAD]},  # UltraFeedback repeats the prompt
    {"prompt": [USER], "chosen": [USER, GOOD], "rejected": [USER, BAD]},
    {"prompt": "q?", "chosen": [USER, GOOD], "rejected": [USER, BAD], "messages": [USER, GOOD], "score": 8.0},
    {"prompt": "q?", "chosen": "yes", "rejected": "no", "messages": [USER, GOOD]},
    {"chosen": [USER, GOOD], "rejected": [USER, BAD], "messages": [USER, GOOD]},
    {"prompt": "q?", "question": "r?", "chosen": "yes", "rejected": "no"},
    {"prompt": "\n\nHuman: q?\n\nAssistant:", "chosen": " yes", "rejected": " no"},
    {"messages": [USER, GOOD], "rejected_response": "no"},  # ms-swift
    {"messages": [USER, GOOD], "rejected_messages": [USER, BAD]},
]


def read(row: dict[str, Any], **mapping: str) -> tuple[Example, Example]:
    return PAIRS.normalise(row, PAIRS.detect([row], where="f", mapping=mapping))


@pytest.mark.parametrize("row", FORMS)
def test_every_form_gives_the_same_pair(row: dict[str, Any]) -> None:
    chosen, rejected = (
        replace(one, messages=tuple({**t, "content": t["content"].strip()} for t in one.messages))
        for one in read(row)
    )
    assert chosen == Example(messages=(USER, GOOD), learn_from=1) and rejected == Example(
        messages=(USER, BAD), learn_from=1
    )
    assert chosen.prompt == rejected.prompt == "user\nq?"


def test_conversations_that_repeat_the_prompt_may_have_a_system_turn_but_no_other_question() -> None:
    system = {"role": "system", "content": "short"}
    row = {"prompt": "q?", "chosen": [system, USER, GOOD], "rejected": [system, USER, BAD]}
    assert [e.messages for e in read(row)] == [(system, USER, GOOD), (system, USER, BAD)]
    assert [e.learn_from for e in read(row)] == [2, 2]
    with pytest.raises(RowError) as caught:
        read({**row, "prompt": "another?"})
    assert caught.value.reason == "other_prompt"


def test_earlier_turns_that_both_answers_share_are_the_prompt_with_or_without_its_column() -> None:
    shared = [USER, {"role": "assistant", "content": "a1"}, {"role": "user", "content": "q2"}]
    alone = {"chosen": [*shared, GOOD], "rejected": [*shared, BAD]}
    for asked in ({}, {"prompt": "q?"}, {"prompt": "q2"}, {"prompt": [USER]}, {"prompt": shared}):
        assert [(one.learn_from, len(one.messages)) for one in read({**asked, **alone})] == [(3, 4)] * 2, (
            asked
        )


def test_a_prompt_that_is_answered_already_and_two_different_prompts_are_refused() -> None:
    with pytest.raises(RowError, match="ends with an answer"):
        read({"conversations": [USER, GOOD], "chosen": "yes", "rejected": "no"})
    history = [USER, GOOD, {"role": "user", "content": "q2"}]
    with pytest.raises(DataError, match=r"data\.format_ambiguous.*prompt, messages"):
        read({"prompt": "q2", "messages": history, "chosen": "yes", "rejected": "no"})


def detect_values(margin: str) -> dict[str, float]:
    return dict(read({"prompt": "a?", "chosen": "b", "rejected": "c", "margin": margin})[0].values)


def test_system_margin_and_named_columns() -> None:
    row = {"q": "a?", "better": "b", "worse": "c", "margin": 1.5, "system": "short"}
    chosen, rejected = read(row, prompt="q", chosen="better", rejected="worse")
    assert chosen.values == rejected.values == {"margin": 1.5}
    assert detect_values("1.5") == {"margin": 1.5}  # of CSV
    assert chosen.messages[0] == {"role": "system", "content": "short"} and chosen.learn_from == 2
    with pytest.raises(DataError, match="data.format_pairs"):
        PAIRS.detect([{"prompt": "a", "chosen": "b"}], where="f")
    with pytest.raises(DataError, match="data.format_ambiguous"):
        PAIRS.detect([{"query": "a", "question": "a", "chosen": "b", "rejected": "c"}], where="f")


@pytest.mark.parametrize("column", ["chosen", "rejected", "prompt"])
def test_a_ranking_of_several_answers_is_refused_with_its_column_and_the_rows_to_write(column: str) -> None:
    with pytest.raises(RowError) as caught:
        read({"prompt": "q", "chosen": "a", "rejected": "b", column: ["good", "so so", "bad"]})
    assert caught.value.reason == "several_texts" and f"'{column}' holds 3" in caught.value.detail
    with pytest.raises(DataError) as refused:
        PAIRS.detect([{"prompt": "q", "responses": ["best", "good"], "rank": [0, 1]}], where="f")
    assert "'responses' holds several texts; write a row for each pair" in str(refused.value)


def pairs_from(rows: list[dict[str, Any]], folder: Path, **data: Any) -> Prepared:
    tokenizer = make_tokenizer(folder / "tokenizer")
    return prepared_from(
        write_jsonl(folder / "pairs.jsonl", rows), tokenizer, folder / "cache", rows="pairs", **data
    )


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"prompt": "q", "chosen": "same", "rejected": "same"}, "data.same_answers"),
        ({"prompt": "q", "chosen": "a", "rejected": "  "}, "data.no_answer"),
        ({"prompt": "q", "chosen": "a"}, "data.missing_column"),
        ({"prompt": "", "chosen": "a", "rejected": "b"}, "data.empty"),
        ({"prompt": "q", "chosen": "a", "rejected": "b", "margin": "wide"}, "data.bad_margin"),
        ({"prompt": "q", "chosen": "a", "rejected": "b" * 99}, "data.too_long"),
    ],
)
def test_a_bad_pair_is_named_with_its_line(row: dict[str, Any], code: str, tmp_path: Path) -> None:
    good = {"prompt": "q", "chosen": "a", "rejected": "b"}
    with pytest.raises(DataError, match=code) as refused:
        pairs_from([good, {**row}], tmp_path, max_length=64, on_too_long="refuse")
    assert "pairs.jsonl:2" in str(refused.value)


def test_halves_stay_together_through_split_packing_and_order(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"question {i}", "chosen": "good " * (1 + i % 5), "rejected": f"bad {i}", "margin": i / 4}
        for i in range(40)
    ]
    prepared = pairs_from(rows, tmp_path, validation_split=8, max_length=48)
    assert prepared.counts.rows_used == 40 and prepared.eval is not None
    assert (len(prepared.train), len(prepared.eval)) == (64, 16)
    for table in (prepared.train, prepared.eval):
        assert np.array_equal(table.source_row[::2], table.source_row[1::2])
        assert np.array_equal(table.keys[::2], table.keys[1::2])
        for document in range(len(table)):
            ids, labels = table.row(document)
            learnt = bytes(i for i in labels[labels != IGNORE_INDEX] if i < 256)
            assert len(learnt) and (labels == IGNORE_INDEX).sum() >= len("question 1")
            assert len(ids) == table.lengths[document]
    source = PackedSource(
        prepared.train, seq_len=48, packing=True, seed=3, pad_token_id=prepared.pad_token_id
    )
    num = source.num_rows(0)
    assert num < 32
    seen: list[int] = []
    for position in range(num):
        ids = source.document_ids(0, [position])
        assert all(b == a + 1 and a % 2 == 0 for a, b in zip(ids[::2], ids[1::2], strict=True))
        assert prepared.train.lengths[ids].sum() <= 96
        seen += ids
    assert sorted(seen) == list(range(64)) and seen != sorted(seen)
    batch = source.batch(0, [0, -1])
    real = len(source.document_ids(0, [0]))
    assert batch.group == 2 and batch.num_rows == 1 and batch.document_ids.tolist()[real:] == [-1, -1]
    expected = [prepared.train.source_row[i] / 4 for i in source.document_ids(0, [0])]
    assert batch.extras["margin"].tolist() == [*expected, 0.0, 0.0]
    one_a_row = PackedSource(prepared.eval, seq_len=48, packing=False, seed=3, pad_token_id=0, shuffle=False)
    assert one_a_row.num_rows(0) == 8 and one_a_row.document_ids(0, [3]) == [6, 7]


def test_a_pair_is_prepared_once_and_answers_alone_are_learnt(tmp_path: Path) -> None:
    row = {"prompt": "q?", "chosen": "a", "rejected": "b"}
    first, again = pairs_from([row], tmp_path), pairs_from([row], tmp_path, train_on="all")
    assert again.from_cache and again.fingerprint == first.fingerprint
    assert first.train.num_labels.tolist() == [2, 2]  # a letter and the end


def test_plain_texts_get_no_template_and_no_role_stands_within_an_answer(tmp_path: Path) -> None:
    """As TRL's DPOTrainer: the texts as they are with an end of text, loss from where they differ."""
    begin = "Q: 2 and 3?\nA: It is"
    rows = [{"chosen": f"{begin} five.", "rejected": f"{begin} four.", "system": "short"}]
    template = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    folder = make_tokenizer(tmp_path / "t", chat_template=template)
    prepared = prepared_from(write_jsonl(tmp_path / "r.jsonl", rows), folder, tmp_path / "c", rows="pairs")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for document, answer in enumerate((" five.", " four.")):
        ids, labels = decode_labels(prepared.train.coded(document))
        assert tokenizer.decode(ids) == f"{begin}{answer}<|end|>"
        assert tokenizer.decode(ids[labels >= 0]) == f"{answer}<|end|>"
    assert any("no chat template" in note.what for note in prepared.notes)


def test_transcripts_without_a_prompt_stay_texts_and_those_of_a_prompt_are_turns() -> None:
    """hh-rlhf's pairs as in TRL: what both begin with, then the rest of each, in one text."""
    row = {"chosen": "\n\nHuman: q?\n\nAssistant: yes", "rejected": "\n\nHuman: q?\n\nAssistant: no"}
    shape = PAIRS.detect([row], where="f")
    assert "no chat template" in shape.note
    assert [one.text[one.begin :] for one in PAIRS.normalise(row, shape)] == [" yes", " no"]
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    spoken = PAIRS.detect(
        [{"chosen": turns, "rejected": [turns[0], {**turns[1], "content": "b"}]}], where="f"
    )
    with pytest.raises(RowError) as caught:
        PAIRS.normalise({"chosen": "It is five", "rejected": "It is four"}, spoken)
    assert caught.value.reason == "bad_messages"
    asked = PAIRS.detect(
        [{"prompt": "\n\nHuman: q?\n\nAssistant:", "chosen": "a", "rejected": "b"}], where="f"
    )
    assert "transcripts (Human:, Assistant:) are read as turns" in asked.note
    assert turns_in("Human: q?") == turns_in("A:\n\nHuman: q?\n\nAssistant: a") == turns_in("") == []
