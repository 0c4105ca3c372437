"""Labelled answers: every form read alike, the label beside each from the file to the batch, bad rows
named.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from data_fixtures import make_tokenizer, prepared_from, write_jsonl

from paceline.core.errors import DataError
from paceline.data.packed_source import PackedSource
from paceline.data.prepare.prepare import Prepared
from paceline.data.rows.formats import Example
from paceline.data.rows.kinds.labelled_answers import LABELLED
from paceline.protocols.batch import IGNORE_INDEX

USER, GOOD = {"role": "user", "content": "q?"}, {"role": "assistant", "content": "yes"}
SHAREGPT = [{"from": "human", "value": "q?"}, {"from": "gpt", "value": "yes"}]
FORMS: list[dict[str, Any]] = [
    {"prompt": "q?", "completion": "yes", "label": True},
    {"prompt": [USER], "completion": [GOOD], "label": True},  # conversational, as TRL has it
    {"prompt": [USER], "completion": "yes", "label": 1},
    {"question": "q?", "answer": "yes", "label": "true", "source": "x"},
    {"instruction": "q?", "input": "", "output": "yes", "kto_tag": True},
    {"messages": [USER, GOOD], "label": True},
    {"prompt": "q?", "completion": "yes", "label": True, "messages": [USER, GOOD]},
    {"prompt": "q?", "question": "r?", "completion": "yes", "label": True},
    {"conversations": SHAREGPT, "kto_tag": True},  # LLaMA-Factory's
]


def read(row: dict[str, Any], **mapping: str) -> Example:
    return LABELLED.normalise(row, LABELLED.detect([row], where="f", mapping=mapping))[0]


@pytest.mark.parametrize("row", FORMS)
def test_every_form_gives_the_same_answer(row: dict[str, Any]) -> None:
    found = read(row)
    assert (
        found == Example(messages=(USER, GOOD), learn_from=1, values={"label": 1.0})
        and found.prompt == "user\nq?"
    )


@pytest.mark.parametrize("label", [False, 0, "False", "0", 0.0])
def test_a_false_label_system_and_named_columns(label: Any) -> None:
    row = {"q": "a?", "said": "b", "fine": label, "system": "short", "prompt_id": "7"}
    found = read(row, prompt="q", completion="said", label="fine")
    assert found.values == {"label": 0.0} and found.messages[0] == {"role": "system", "content": "short"}
    assert found.learn_from == 2


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "a", "completion": "b"},
        {"completion": "b", "label": True},
        {"prompt": "a", "label": True},
        {"prompt": "a", "chosen": "b", "rejected": "c"},
    ],
)
def test_rows_of_another_kind_are_refused(row: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="data.format_labelled"):
        LABELLED.detect([row], where="f")


def labelled_from(rows: list[dict[str, Any]], folder: Path, **data: Any) -> Prepared:
    path = write_jsonl(folder / "rows.jsonl", rows)
    return prepared_from(
        path, make_tokenizer(folder / "tokenizer"), folder / "cache", rows="labelled", **data
    )


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"prompt": "q", "completion": "a", "label": "good"}, "data.bad_label"),
        ({"prompt": "q", "completion": "a", "label": 2}, "data.bad_label"),
        ({"prompt": "q", "completion": "a", "label": [True]}, "data.bad_label"),
        ({"prompt": "q", "completion": "a", "label": None}, "data.missing_column"),
        ({"prompt": "q", "completion": "  ", "label": True}, "data.no_answer"),
        ({"prompt": "q", "completion": [USER], "label": True}, "data.no_answer"),
        ({"prompt": " ", "completion": "a", "label": True}, "data.empty"),
        ({"completion": "a", "label": True}, "data.missing_column"),
    ],
)
def test_a_bad_row_is_named_with_its_line(row: dict[str, Any], code: str, tmp_path: Path) -> None:
    good = {"prompt": "q", "completion": "a", "label": True}
    with pytest.raises(DataError, match=code) as refused:
        labelled_from([good, row], tmp_path)
    assert "rows.jsonl:2" in str(refused.value)


def test_labels_stay_with_their_answers_and_the_prompt_is_not_learnt(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"question {i}", "completion": f"answer {i} " * (1 + i % 4), "label": i % 3 == 0}
        for i in range(30)
    ]
    prepared = labelled_from(rows, tmp_path, validation_split=6)
    assert prepared.eval is not None and (len(prepared.train), len(prepared.eval)) == (24, 6)
    source = PackedSource(prepared.train, seq_len=256, packing=True, seed=3, pad_token_id=0)
    batch = source.batch(1, [0, -1])
    for d, document in enumerate(batch.document_ids.tolist()):
        row = rows[int(prepared.train.source_row[document])] if document >= 0 else {"label": False}
        assert float(batch.extras["label"][d]) == float(row["label"])
        start, end = batch.cu_seqlens[d], batch.cu_seqlens[d + 1]
        learnt = batch.labels[0, start:end][batch.labels[0, start:end] != IGNORE_INDEX]
        assert len(learnt) == (prepared.train.num_labels[document] if document >= 0 else 0)
    assert float(batch.extras["label"].sum()) > 0


def test_rows_of_one_label_are_told_after_the_preparation_with_their_number(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{i}", "completion": f"a{i}", "label": True} for i in range(70)]
    for number, added in enumerate(([], [{"prompt": "q", "completion": "a", "label": False}])):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = [d.found for d in labelled_from([*rows, *added], folder).notes if d.code == "data.one_label"]
        assert found == ([] if added else ["70 rows with label: true, 0 with label: false"])


def test_the_note_says_what_the_rows_are(tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path / "tokenizer")
    rows = [{"prompt": "q?", "completion": "yes", "label": n} for n in (True, False)]
    found = prepared_from(write_jsonl(tmp_path / "r.jsonl", rows), folder, tmp_path / "c", rows="labelled")
    assert any(note.what.startswith("the rows are read as labelled answers: ") for note in found.notes)
