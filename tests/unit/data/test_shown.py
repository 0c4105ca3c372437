"""``paceline data show``: rows as the model gets them, and the totals of the data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conversation_templates import THINKS
from data_fixtures import DataSection, ModelSection, make_tokenizer, prepare, write_jsonl

from paceline.data.chat_template.encode import Encoder
from paceline.data.preflight.check_sets import look_at_sets
from paceline.data.prepare.prepare import sets_of, setup_of
from paceline.data.preview import main, row_lines, show_rows, total_lines, totals_of
from paceline.data.rows.examples import Reading
from paceline.data.rows.kinds.base import DOCUMENTS
from paceline.data.rows.kinds.preference_pairs import PAIRS
from paceline.data.tokenizer.load import open_tokenizer
from paceline.watch.summary_plots import draw_lengths

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
TURNS = [
    {"role": "user", "content": "How warm?"},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
    {"role": "tool", "content": "4 C", "name": "f"},
    {"role": "assistant", "content": "Four.\x1b[31m"},
]
ROWS = [
    {"messages": TURNS, "tools": [TOOL]},
    {"messages": TURNS, "tools": [TOOL]},
    {"messages": TURNS[:1]},
    {"messages": [TURNS[0], {"role": "assistant", "content": "x" * 900}]},
]


@pytest.fixture
def sections(tmp_path: Path) -> tuple[DataSection, ModelSection]:
    make_tokenizer(tmp_path / "tokenizer", chat_template=THINKS)
    rows = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    data = DataSection(train=str(rows), max_length=600, num_proc=1, on_bad_row="skip")
    return data, ModelSection(tokenizer=str(tmp_path / "tokenizer"))


def test_a_row_is_shown_as_it_is_prepared(sections: tuple[DataSection, ModelSection], tmp_path: Path) -> None:
    data, model = sections
    setup = setup_of(data, model, DOCUMENTS)
    encoder = Encoder(open_tokenizer(setup.tokenizer), setup.train_on)
    rows = list(show_rows(setup, sets_of(data)[0][0], encoder, 1, 9))
    table = prepare(data, model, seed=1, cache_dir=tmp_path / "cache").train
    documents = [d for row in rows for d in row.documents]
    assert [d.tokens for d in documents] == table.lengths.tolist()
    assert [d.labels for d in documents] == table.num_labels.tolist()
    # every token is shown, with its turn; calls and answers alone carry loss
    first = rows[0].documents[0]
    shown = "".join(piece.text for piece in first.pieces)
    assert shown == encoder.tokenizer.decode(table.row(0)[0].tolist())
    assert {piece.turn for piece in first.pieces if piece.has_loss} == {1, 3}
    assert first.left_out == ("messages[].name",)
    assert rows[2].problems[0][0] == "no_answer" and rows[3].documents[0].cut > 300
    text = "\n".join(row_lines(rows[0], colour=False))
    assert "\x1b" not in text and "«<think>" in text and "turn 2   assistant" in text
    green = "\n".join(row_lines(rows[0], colour=True))
    assert "\x1b[31m" not in green and "\x1b[32m<think>" in green


def test_an_added_end_is_its_answers_and_turns_behind_it_are_named(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ '[' + m['role'] + ']' + m['content'] }}{% endfor %}"
    make_tokenizer(tmp_path / "tokenizer", chat_template=template)
    turns = [{"role": role, "content": "ab"} for role in ("user", "assistant") * 2]
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"messages": turns[:count]} for count in (2, 3, 4)])
    data = DataSection(train=str(rows), num_proc=1)
    setup = setup_of(data, ModelSection(tokenizer=str(tmp_path / "tokenizer")), DOCUMENTS)
    encoder = Encoder(open_tokenizer(setup.tokenizer), setup.train_on)
    shown = list(show_rows(setup, sets_of(data)[0][0], encoder, 1, 3))
    for row, last, missing in zip(shown, (1, 1, 3), ((), (2,), ()), strict=True):
        (document,) = row.documents
        assert document.pieces[-1].text.endswith("<|end|>") and document.pieces[-1].turn == last
        assert document.behind_end == missing
    assert "turn 3   user       left out" in "\n".join(row_lines(shown[1], colour=False))


def test_pairs_are_shown_with_both_answers(
    sections: tuple[DataSection, ModelSection], tmp_path: Path
) -> None:
    rows = write_jsonl(tmp_path / "pairs.jsonl", [{"prompt": "Q", "chosen": "A", "rejected": "B"}])
    setup = setup_of(DataSection(train=str(rows), num_proc=1), sections[1], PAIRS)
    encoder = Encoder(open_tokenizer(setup.tokenizer), setup.train_on)
    (row,) = show_rows(setup, sets_of(DataSection(train=str(rows)))[0][0], encoder, 1, 1)
    assert [d.roles for d in row.documents] == [("user", "assistant")] * 2
    assert "document 2:" in "\n".join(row_lines(row, colour=False))


def test_totals_are_those_of_the_prepared_data(
    sections: tuple[DataSection, ModelSection], tmp_path: Path
) -> None:
    prepared = prepare(*sections, seed=1, cache_dir=tmp_path / "cache")
    totals = totals_of(prepared)
    assert (totals.rows, totals.used, totals.skipped, totals.truncated) == (4, 3, {"no_answer": 1}, 1)
    assert totals.duplicates == 1 and totals.not_read == {"messages[].name": 2}
    assert totals.tokens == int(np.sum(totals.lengths)) == prepared.counts.tokens
    assert totals.labels == prepared.counts.labels
    text = "\n".join(total_lines(totals))
    assert (
        "4 read, 3 used, 1 left out" in text
        and "duplicates: 1" in text
        and "messages[].name: in 2 rows" in text
    )
    picture = draw_lengths(totals.to_json(), 600, tmp_path / "new" / "lengths.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_verb_names_a_row_that_is_not_there(
    sections: tuple[DataSection, ModelSection], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    data, model = sections
    train = [section.model_dump() for section in data.train]
    described = {"train": train, "max_length": 600, "on_bad_row": "skip", "num_proc": 1}
    config.write_text(json.dumps({"data": described, "model": {"tokenizer": model.tokenizer}}))
    given = ["--config-json", str(config), "--cache", str(tmp_path / "cache")]
    assert main([*given, "--row", "9"]) == 2 and "data.no_such_row" in capsys.readouterr().err
    assert main([*given, "--row", "1", "--eval"]) == 2 and "set data.eval" in capsys.readouterr().err
    assert main([*given, "--row", "1"]) == 0 and "row 1 " in capsys.readouterr().out
    assert main([*given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["duplicates"] == 1


def test_rows_with_answers_in_a_row_are_counted(tmp_path: Path) -> None:
    """Not those with a call of tools between, nor where one of the two has no loss."""
    user, call = {"role": "user", "content": "q"}, {"function": {"name": "f", "arguments": {}}}
    one, two = ({"role": "assistant", "content": text} for text in "ab")
    called, result = {**one, "tool_calls": [call]}, {"role": "tool", "content": "r"}
    conversations = [
        [user, one, two],
        [user, one, user, two, one, two],
        [user, one, user, two],
        [user, {**one, "weight": 0}, two],
        [user, called, result, two],
    ]
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"messages": turns} for turns in conversations])
    make_tokenizer(tmp_path / "tokenizer", chat_template=THINKS)
    data = DataSection(train=str(rows), num_proc=1)
    model = ModelSection(tokenizer=str(tmp_path / "tokenizer"))
    totals = totals_of(prepare(data, model, seed=1, cache_dir=tmp_path / "cache"))
    _, found = look_at_sets(data, Reading.of(data, DOCUMENTS))
    notes = [note for note in found if note.code == "data.answers_in_a_row"]
    assert totals.in_a_row == 2 and [note.evidence["rows"] for note in notes] == [2]


def test_answers_in_a_row_inside_one_half_of_a_pair_are_counted(tmp_path: Path) -> None:
    user, one, two = ({"role": role, "content": role} for role in ("user", "assistant", "assistant"))
    pairs = [
        {"prompt": [user], "chosen": [one, two], "rejected": [{**one, "content": "b"}]},
        {"prompt": [user, one, user], "chosen": [one], "rejected": [{**one, "content": "b"}]},
    ]
    data = DataSection(train=str(write_jsonl(tmp_path / "rows.jsonl", pairs)), num_proc=1)
    _, found = look_at_sets(data, Reading.of(data, PAIRS))
    assert [note.evidence["rows"] for note in found if note.code == "data.answers_in_a_row"] == [1]
