"""Turns as text in a table are read as turns, under any names of roles; what only looks so is named."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from data_fixtures import make_tokenizer, prepared_from

from paceline.core.errors import DataError
from paceline.data.rows.messages import parsed_turns
from paceline.data.rows.values import RawRow

TURNS = [{"role": "human", "content": "q"}, {"role": "gpt", "content": "a"}]


def table(path: Path, *texts: str) -> str:
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerows([["messages"], *([text] for text in texts)])
    return str(path)


def test_turns_in_a_table_are_learnt_as_turns(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path / "t")
    path = table(tmp_path / "a.csv", json.dumps(TURNS), json.dumps(TURNS, indent=1))
    prepared = prepared_from(path, tokenizer, tmp_path / "c", model={"chat_template": "chatml"})
    assert prepared.train.num_labels.tolist() == [2, 2]  # a letter and the end


@pytest.mark.parametrize("text", [str(TURNS), json.dumps(TURNS)[:-3]])
def test_what_begins_like_turns_and_is_no_json_is_named_with_its_line(text: str, tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", json.dumps(TURNS), text)
    with pytest.raises(DataError, match=r"data\.bad_messages(.|\n)*a\.csv:3.*begins like turns"):
        prepared_from(path, make_tokenizer(tmp_path / "t"), tmp_path / "c", model={"chat_template": "chatml"})


@pytest.mark.parametrize("wrap", [json.dumps, dict])
def test_turns_within_an_object_are_named(wrap: Callable[[object], Any]) -> None:
    [row] = parsed_turns([RawRow({"chosen": wrap({"messages": TURNS, "tools": []})}, "f:1")], {})
    assert row.value is None and "write that list as 'chosen'" in row.detail


@pytest.mark.parametrize(
    "text",
    [
        '{"messages": ["Hello"]}',
        '{"role": "admin"}',
        '[{"name": "f", "arguments": {}}]',
        '{"content": "x"}',
        "[1]",
        '{"value": 5} is what you asked for.',
        "{'content': 5}",
        '{"from": "Rome", "to": "Pisa"}\n{"from": "Pisa"}',
    ],
)
def test_answers_that_are_or_begin_with_json_stay_text(text: str) -> None:
    [row] = parsed_turns([RawRow({"completion": text}, "f:1")], {})
    assert row.value == {"completion": text}
