"""No written answer shows special tokens: expected ones are compared alike, and the start says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from data_fixtures import make_tokenizer, write_jsonl
from transformers import AutoTokenizer

from paceline.config.schema import Config
from paceline.data.preflight.check_sets import look_at_sets
from paceline.data.rows.examples import Reading
from paceline.data.rows.kinds.base import row_kind
from paceline.data.tokenizer.file_facts import inner_texts, special_in_files, special_texts

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|end|>{% endfor %}"
ANSWER = "<tool>5</tool> is <|im_start|>"
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "turns": ("documents", {"messages": [{"role": "user", "content": "?"}, {"role": "assistant"}]}),
    "completion": ("documents", {"prompt": "?", "completion": ""}),
    "pair": ("pairs", {"prompt": "?", "chosen": "", "rejected": "b"}),
    "reward": ("prompts", {"prompt": "?", "answer": ""}),
    "last turn": ("prompts", {"prompt": [{"role": "user", "content": "?"}, {"role": "assistant"}]}),
}


def row_with(name: str, answer: str) -> tuple[str, dict[str, Any]]:
    kind, row = ROWS[name]
    turns = row.get("messages", row.get("prompt"))
    if isinstance(turns, list):
        key = "messages" if "messages" in row else "prompt"
        return kind, {key: [turns[0], {**turns[1], "content": answer}]}
    return kind, {**row, next(key for key in row if key != "prompt"): answer}


def warnings(tmp_path: Path, name: str, answer: str, **model: Any) -> list[Any]:
    folder = make_tokenizer(tmp_path / "t", chat_template=TEMPLATE)
    kind, row = row_with(name, answer)
    path = write_jsonl(tmp_path / "r.jsonl", [row])
    config = Config.from_json({"model": {"tokenizer": str(folder), **model}, "data": {"train": path}})
    _, found = look_at_sets(config.data, Reading(kind=row_kind(kind)), model=config.model)
    return [one for one in found if one.code == "data.special_in_answer"]


@pytest.mark.parametrize("name", ROWS)
def test_special_tokens_that_answers_should_show_are_named_with_a_remedy(name: str, tmp_path: Path) -> None:
    added = ["</tool>", "<tool>", "<unused>"]
    (found,) = warnings(tmp_path, name, ANSWER, add_special_tokens=added)
    assert found.found.endswith("r.jsonl: <tool>, </tool>") and found.severity == "warning"
    assert found.hint == 'model.add_tokens: ["<tool>", "</tool>"] instead of model.add_special_tokens'
    assert not warnings(tmp_path, name, ANSWER, add_tokens=added)  # the remedy
    assert not warnings(tmp_path, name, "5<|end|>", add_special_tokens=added)  # what ends a text


def test_special_tokens_of_the_tokenizer_itself_are_named_too(tmp_path: Path) -> None:
    (found,) = warnings(tmp_path, "completion", "<|im_end|>5<|im_start|>")  # the template writes <|im_start|>
    assert found.found.endswith(": <|im_end|>") and "model.add_tokens" in found.hint


def test_an_expected_answer_is_compared_as_the_tokenizer_writes_it(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(make_tokenizer(tmp_path / "t"))
    tokenizer.add_tokens(["<tool>", "</tool>"], special_tokens=True)
    tokenizer.add_tokens(["<shown>"])
    special = special_texts(tokenizer)
    for text in (ANSWER, "a <tool> b</tool></tool>", "<shown>5<|end|>", "", "plain"):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert special.removed_from(text) == tokenizer.decode(ids, skip_special_tokens=True)
    assert special.tokens - inner_texts(tokenizer).tokens == {"<|end|>"} and tokenizer.eos_token == "<|end|>"
    tokenizer.save_pretrained(tmp_path / "saved")
    assert special_in_files(tmp_path / "saved") == special.tokens
