"""Prompts with answers: read in every form, tokens up to where the model answers, the row kept whole for
rewards, bad rows named.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_fixtures import make_tokenizer, prepared_from, write_jsonl
from transformers import AutoTokenizer

from paceline.core.errors import DataError
from paceline.data.packed_source import PackedSource
from paceline.data.prepare.main import summary
from paceline.data.prepare.prepare import Prepared
from paceline.data.rows.formats import Example
from paceline.data.rows.kinds.prompts import PROMPTS
from paceline.data.rows.values import RowError

ASKED, NOTES_BY_KEY = {"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}
FORMS: list[dict[str, Any]] = [
    {"question": "1+1?", "answer": "2"},
    {"prompt": "1+1?", "answer": "2", "question": "not this"},
    {"instruction": "1+1?", "input": "", "output": "2"},
    {"prompt": [ASKED], "solution": "2"},
    {"messages": [ASKED, NOTES_BY_KEY]},
    {"conversations": [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}]},
]


def read(row: dict[str, Any], **mapping: str) -> Example:
    return PROMPTS.normalise(row, PROMPTS.detect([row], where="f", mapping=mapping))[0]


NAMED: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"q": "1+1?", "a": "2"}, {"prompt": "q", "completion": "a"}),
    ({"q": "1+1?", "a": "2"}, {"question": "q", "answer": "a"}),
    ({"q": "1+1?", "a": "2"}, {"instruction": "q", "output": "a"}),
    ({"input": "1+1?", "output": "2"}, {"instruction": "input"}),
    ({"rounds": [ASKED, NOTES_BY_KEY]}, {"messages": "rounds"}),
]


@pytest.mark.parametrize(("row", "names"), NAMED)
def test_columns_have_the_names_that_training_takes(row: dict[str, Any], names: dict[str, str]) -> None:
    """One mapping serves training, evaluate and generate over the same rows."""
    example = read(row, **names)
    assert example.messages == (ASKED,) and json.loads(example.facts)["answer"] == "2"


def test_an_instruction_under_another_name_keeps_its_input() -> None:
    example = read({"q": "Add.", "input": "1 1", "output": "2"}, instruction="q")
    assert example.messages[0]["content"] == "Add.\n1 1"


def test_two_names_of_the_prompt_are_refused() -> None:
    with pytest.raises(DataError, match="two names of one column"):
        read({"q": "1+1?", "p": "1+1?"}, prompt="q", question="p")


@pytest.mark.parametrize("row", FORMS)
def test_every_form_gives_the_same_prompt(row: dict[str, Any]) -> None:
    example = read(row)
    assert example.messages == (ASKED,) and example.prompt == "user\n1+1?"
    facts = json.loads(example.facts)
    assert facts["answer"] == "2" and facts["prompt"] == "1+1?"


def test_what_rewards_may_need_is_kept() -> None:
    example = read({"q": "1+1?", "tests": ["a", "b"], "level": 3, "x": None, "system": "short"}, prompt="q")
    assert example.messages == ({"role": "system", "content": "short"}, ASKED)
    assert json.loads(example.facts) == {
        "prompt": "1+1?",
        "q": "1+1?",
        "tests": ["a", "b"],
        "level": 3,
        "x": None,
        "system": "short",
    }
    both = read({"messages": [ASKED, NOTES_BY_KEY], "answer": "two"})
    assert json.loads(both.facts)["answer"] == "two" and both.messages == (ASKED,)
    assert json.loads(both.facts)["expected_turn"] == NOTES_BY_KEY
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    calling = read({"messages": [ASKED, {"role": "assistant", "content": "", "tool_calls": [call]}]})
    assert json.loads(calling.facts)["expected_turn"]["tool_calls"] == [call]
    more = read({"instruction": "Add", "input": "1 1", "output": "2"})
    assert more.messages[0]["content"] == "Add\n1 1"


@pytest.mark.parametrize(
    ("row", "mapping"),
    [
        ({"answer": "2"}, {}),
        ({"question": "a", "problem": "b"}, {}),
        ({"question": "a"}, {"prompt": "nobody"}),
        ({"question": "a"}, {"promt": "question"}),
    ],
)
def test_no_prompt_or_several(row: dict[str, Any], mapping: dict[str, str]) -> None:
    with pytest.raises(DataError, match="data.format_prompts"):
        PROMPTS.detect([row], where="f", mapping=mapping)


def test_rows_without_a_question() -> None:
    for row in ({"question": None}, {"question": " "}, {"question": [{"role": "assistant", "content": "x"}]}):
        with pytest.raises(RowError):
            read(row)


def prompts_from(rows: list[dict[str, Any]], folder: Path, **data: Any) -> Prepared:
    tokenizer = make_tokenizer(folder / "tokenizer")
    return prepared_from(
        write_jsonl(folder / "prompts.jsonl", rows), tokenizer, folder / "cache", rows="prompts", **data
    )


def test_prepared_prompts(tmp_path: Path) -> None:
    rows = [{"question": f"{n} + {n}?", "answer": f"so\n#### {2 * n}", "level": n} for n in range(20)]
    prepared = prompts_from(rows, tmp_path, validation_split=4)
    assert len(prepared.train) == 16 and prepared.eval is not None and len(prepared.eval) == 4
    tokenizer = AutoTokenizer.from_pretrained(prepared.tokenizer_path)
    for document in range(16):
        ids, labels = prepared.train.row(document)
        facts = prepared.train.facts(document)
        assert (labels == -100).all()
        turn = [{"role": "user", "content": facts["prompt"]}]
        assert (
            ids.tolist()
            == tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=True)["input_ids"]
        )
        assert facts["answer"] == f"so\n#### {2 * facts['level']}"
    source = PackedSource(
        prepared.train, seq_len=512, packing=False, seed=1, pad_token_id=prepared.pad_token_id
    )
    order = [source.document_ids(0, [i])[0] for i in range(16)]
    assert sorted(order) == list(range(16)) and order != sorted(order)
    again = prompts_from(rows, tmp_path, validation_split=4)
    assert again.from_cache and again.fingerprint == prepared.fingerprint
    changed = prompts_from([*rows[:-1], {**rows[-1], "level": 99}], tmp_path, validation_split=4)
    assert changed.fingerprint != prepared.fingerprint
    said = "\n".join(summary(prepared, PROMPTS, seq_len=64, packing=False, seed=0, seconds=0.1))
    assert "of prompts: the answers that the model generates carry loss; the longest" in said
    assert "0 of them" not in said


def test_a_prompt_as_long_as_the_limit_is_left_out_and_counted(tmp_path: Path) -> None:
    rows = [{"question": "short?", "answer": "1"}, {"question": "long " * 80, "answer": "2"}]
    length = int(prompts_from(rows, tmp_path, max_length=500).train.lengths.max())
    assert len(prompts_from(rows, tmp_path, max_length=length + 1).train) == 2  # room for one token
    prepared = prompts_from(rows, tmp_path, max_length=length)
    assert len(prepared.train) == 1 and prepared.counts.skipped["prompt_too_long"].count == 1
    assert any("no room for an answer" in note.what for note in prepared.notes)
    with pytest.raises(DataError, match="data.prompt_too_long"):
        prompts_from(rows, tmp_path, max_length=length, on_too_long="refuse")
    assert np.all(prepared.train.lengths < length)
