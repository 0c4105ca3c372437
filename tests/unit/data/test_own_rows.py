"""Rows of the user's own code: functions that give rows, and converters before a row's format is detected."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from data_fixtures import make_tokenizer

from paceline.config.sections.data import DataSection
from paceline.config.sections.model import ModelSection
from paceline.core.errors import DataError
from paceline.data.prepare.prepare import Prepared, prepare

MINE = """
def asked(row):
    if row["n"] == 4:
        return None
    return {"prompt": f"What is {row['n']}?", "completion": f"It is {row['n']}."}

def strict(row):
    return asked(row) if row["n"] < 6 else asked(row["m"])

def odd(row):
    return {"text": {1, 2}}

def rows():
    return ({"prompt": f"What is {n}?", "completion": f"It is {n}."} for n in range(8) if n != 4)
"""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "mine_rows.py").write_text(MINE)
    (tmp_path / "raw.jsonl").write_text("".join(json.dumps({"n": n}) + "\n" for n in range(8)))
    by_hand = [{"prompt": f"What is {n}?", "completion": f"It is {n}."} for n in range(8) if n != 4]
    (tmp_path / "by_hand.json").write_text(json.dumps(by_hand))
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("mine_rows", None)


def made(mine: Path, tokenizer: Path, **data: Any) -> Prepared:
    section = DataSection.model_validate({"num_proc": 1, "max_length": 64, **data})
    return prepare(section, ModelSection(tokenizer=str(tokenizer)), seed=1, cache_dir=mine / "cache")


def tokens(found: Prepared) -> list[list[int]]:
    return [found.train.row(i)[0].tolist() for i in range(len(found.train))]


def test_converted_rows_and_a_functions_rows_are_those_written_by_hand(mine: Path, tokenizer: Path) -> None:
    by_hand = tokens(made(mine, tokenizer, train=str(mine / "by_hand.json")))
    raw = str(mine / "raw.jsonl")
    for data in (
        {"train": raw, "converter": "mine_rows:asked"},
        {"train": [{"path": raw, "converter": "mine_rows:asked"}]},
        {"train": "mine_rows:rows"},
    ):
        found = made(mine, tokenizer, **data)
        assert tokens(found) == by_hand and len(by_hand) == 7
        left = [
            (d.severity.value, d.evidence["count"]) for d in found.notes if d.code == "data.converted_away"
        ]
        assert left == ([("note", 1)] if data["train"] != "mine_rows:rows" else [])
        assert found.counts.rows_read == found.counts.rows_used + found.counts.rows_skipped


def test_a_row_that_the_converter_fails_on_is_named_and_may_be_skipped(mine: Path, tokenizer: Path) -> None:
    data = {"train": str(mine / "raw.jsonl"), "converter": "mine_rows:strict"}
    with pytest.raises(DataError) as caught:
        made(mine, tokenizer, **data)
    (found,) = caught.value.diagnostics
    assert found.code == "data.converter" and found.where == f"{mine / 'raw.jsonl'}:7"
    assert "KeyError: 'm'" in found.found and found.evidence["count"] == 2
    assert len(tokens(made(mine, tokenizer, **data, on_bad_row="skip"))) == 5
    with pytest.raises(DataError, match="'text' is set"):
        made(mine, tokenizer, train=str(mine / "raw.jsonl"), converter="mine_rows:odd")


def test_another_source_of_the_converter_is_another_data_set(mine: Path, tokenizer: Path) -> None:
    data = {"train": str(mine / "raw.jsonl"), "converter": "mine_rows:asked"}
    first = made(mine, tokenizer, **data)
    assert made(mine, tokenizer, **data).from_cache
    (mine / "mine_rows.py").write_text(MINE.replace("It is", "That is"))
    sys.modules.pop("mine_rows")
    again = made(mine, tokenizer, **data)
    assert not again.from_cache and tokens(again) != tokens(first)


def test_a_functions_rows_are_known_by_their_content(mine: Path, tokenizer: Path) -> None:
    first = made(mine, tokenizer, train="mine_rows:rows")
    assert made(mine, tokenizer, train="mine_rows:rows").from_cache
    source = MINE.replace(
        "range(8) if n", "range(8 + 1) if n"
    )  # of another length: its bytecode is not taken
    (mine / "mine_rows.py").write_text(source)
    sys.modules.pop("mine_rows")
    assert len(made(mine, tokenizer, train="mine_rows:rows").train) == len(first.train) + 1
