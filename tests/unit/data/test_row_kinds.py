"""Conversations in every kind of row: tools and several turns hold, and nothing that is taken away goes
unnoticed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from conversation_templates import PLAIN, THINKS
from data_fixtures import make_tokenizer, prepared_from, write_jsonl

from paceline.config.sections.data import DataSection
from paceline.core.errors import DataError
from paceline.data.chat_template.encode import Encoded, Encoder
from paceline.data.preflight.check_sets import look_at_sets
from paceline.data.rows.examples import Reading, RowReader
from paceline.data.rows.kinds.base import row_kind
from paceline.data.rows.messages import WEIGHTS
from paceline.data.rows.row_errors import Problem
from paceline.data.tokenizer.load import TokenizerSpec, open_tokenizer

CITY = {"properties": {"city": {"enum": ["Oslo"]}}}
SCHEMA = {"name": "weather", "description": "of a city", "parameters": CITY}
TOOL = {"type": "function", "function": SCHEMA}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
SYSTEM = {"role": "system", "content": "Be short."}
ASKED = {"role": "user", "content": "How warm?", "name": "Ada"}
ANSWERED = {"role": "assistant", "content": "Four."}
CALLING = {"role": "assistant", "content": "I look.", "reasoning_content": "Not known.", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "4 C", "tool_call_id": "c1", "name": "weather"}
KNOWN = {**ANSWERED, "reasoning_content": "Now known."}
BESIDE = {"tools": [TOOL], "chat_template_kwargs": {"enable_thinking": False}, "zq": "x", "id": 7}
HISTORY = [SYSTEM, ASKED, CALLING, RESULT, {**KNOWN, "weight": 0}, {**ASKED, "mood": "warm"}]
BETTER, OTHER = [CALLING, RESULT, KNOWN], {"role": "assistant", "content": "Five."}
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "documents": ("documents", {"messages": [*HISTORY, CALLING, RESULT, KNOWN], **BESIDE}),
    "sharegpt": (
        "documents",
        {
            "conversations": [
                {"from": "human", "value": "How warm?"},
                {"from": "function_call", "value": json.dumps(CALL["function"])},
                {"from": "observation", "value": "4 C"},
                {"from": "gpt", "value": "Four.", "loss": True},
            ],
            "system": "Be short.",
            **BESIDE,
        },
    ),
    "pairs": ("pairs", {"prompt": HISTORY, "chosen": BETTER, "rejected": [OTHER], **BESIDE, "margin": 2}),
    "pairs without a prompt": (
        "pairs",
        {"chosen": [*HISTORY, *BETTER], "rejected": [*HISTORY, OTHER], **BESIDE},
    ),
    "labelled": ("labelled", {"prompt": HISTORY, "completion": BETTER, "label": True, **BESIDE}),
    "prompts": ("prompts", {"prompt": HISTORY, "answer": "Four.", **BESIDE}),
    "classified": ("classified", {"messages": [*HISTORY, KNOWN], "label": "cold", **BESIDE}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def encoder(folder: Path, template: str = THINKS) -> Encoder:
    return Encoder(open_tokenizer(TokenizerSpec(str(folder), chat_template=template)), "assistant")


def seen(coder: Encoder, name: str, row: dict[str, Any]) -> tuple[Any, set[str]] | None:
    """(tokens, labels, numbers and facts of the row's documents; the fields that were counted as taking no
    part); None if the row is refused.
    """
    kind = row_kind(ROWS[name][0])
    try:
        shape = kind.detect([ROWS[name][1]], where="x", requested="auto", mapping=None)
    except DataError:
        return None
    reader = RowReader(shape, Reading(kind=kind))
    examples = reader.read(row, "x:1")
    if isinstance(examples, Problem):
        return None
    encode = coder.encode if kind.learns_tokens else coder.encode_whole
    encode = coder.encode_prompts if kind.answered else encode
    found = encode(examples)
    if not all(isinstance(one, Encoded) for one in found):
        return None
    encoded = [one for one in found if isinstance(one, Encoded)]
    what = [
        (e.input_ids.tolist(), e.labelled.tolist(), dict(x.values), x.facts)
        for e, x in zip(encoded, examples, strict=True)
    ]
    return what, {*reader.unread, *(field for e in encoded for field in e.left_out)}


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key and every item at any depth."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        if isinstance(item, (dict, list)):
            yield from paths(item, (*path, key))


def without(row: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    less: Any = json.loads(json.dumps(row))
    inner = less
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return dict(less)


@pytest.mark.parametrize("name", ROWS)
def test_a_field_that_is_taken_away_changes_the_document_or_was_counted(name: str, folder: Path) -> None:
    coder, row = encoder(folder), ROWS[name][1]
    whole = seen(coder, name, row)
    assert whole is not None, "the row itself is used"
    counted = {part for field in whole[1] for part in field.replace("[]", "").split(" ")[0].split(".")}
    counted |= {"loss"} & set(WEIGHTS) if "weight" in counted else set()
    unnoticed = []
    for path in paths(row):
        less = seen(coder, name, without(row, path))
        if less is not None and less[0] == whole[0] and str(path[-1]) not in counted:
            unnoticed.append(path)
    # A type that is the only one there is, and what a call is understood to be without
    assert [p for p in unnoticed if p[-1] != "type"] == []


def test_pairs_of_several_turns_share_their_prompt_with_and_without_its_column(folder: Path) -> None:
    coder = encoder(folder)
    kind = row_kind("pairs")
    made = []
    for name in ("pairs", "pairs without a prompt"):
        row = ROWS[name][1]
        shape = kind.detect([row], where="x", requested="auto", mapping=None)
        examples = RowReader(shape, Reading(kind=kind)).read(row, "x:1")
        assert not isinstance(examples, Problem) and [e.learn_from for e in examples] == [6, 6]
        made.append(coder.encode(examples))
    for one, other in zip(*made, strict=True):
        assert isinstance(one, Encoded) and isinstance(other, Encoded)
        assert one.input_ids.tolist() == other.input_ids.tolist()
        assert one.labelled.tolist() == other.labelled.tolist()
    decode = coder.tokenizer.decode
    chosen, rejected = (decode(e.input_ids[e.labelled].tolist()) for e in made[0] if isinstance(e, Encoded))
    assert "weather" in chosen and "Now known." in chosen and "4 C" not in chosen
    assert "Five." in rejected and "I look." not in rejected


@pytest.mark.parametrize("rows", ["pairs", "labelled", "prompts", "documents"])
def test_prepared_rows_hold_their_tools(rows: str, tmp_path: Path) -> None:
    """The rows of reward, DPO (pairs), KTO (labelled), GRPO, PPO (prompts) and SFT."""
    folder = make_tokenizer(tmp_path / "t", chat_template=THINKS)
    row = ROWS[rows][1]
    path = write_jsonl(tmp_path / "rows.jsonl", [row, {k: v for k, v in row.items() if k != "tools"}])
    found = prepared_from(path, folder, tmp_path / "cache", rows=rows, max_length=4096)
    tokenizer = open_tokenizer(TokenizerSpec(str(folder)))
    texts = [tokenizer.decode(abs(found.train.row(i)[0]).tolist()) for i in range(len(found.train))]
    with_tools = [text for text in texts if '"enum": ["Oslo"]' in text]
    assert len(with_tools) == len(texts) // 2 and all("RESULT" in t or "4 C" in t for t in texts)
    if rows == "prompts":
        assert all(text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n") for text in texts)
    folder = make_tokenizer(tmp_path / "plain", chat_template=PLAIN)
    with pytest.raises(DataError) as caught:
        prepared_from(path, folder, tmp_path / "cache", rows=rows, max_length=4096)
    assert {"data.tools", "data.turn_left_out"} & {d.code for d in caught.value.diagnostics}


TEXT, CHAT, COMPLETION = (
    {"text": "one two"},
    {"messages": [ASKED, ANSWERED]},
    {"prompt": "one", "completion": "two"},
)


def test_completions_alone_have_loss_where_a_row_has_them_apart(tmp_path: Path) -> None:
    """As in TRL 1.16: of prompt and completion the completion, of a conversation all."""
    tokenizer = make_tokenizer(tmp_path / "tokenizer", chat_template=PLAIN)

    def labels(train_on: str, row: dict[str, Any]) -> list[list[int]]:
        file = write_jsonl(tmp_path / f"{train_on}.jsonl", [row] * 4)
        made = prepared_from([{"path": str(file)}], tokenizer, tmp_path / "cache", train_on=train_on)
        return [made.train.row(number)[1].tolist() for number in range(len(made.train))]

    assert labels("assistant", COMPLETION) != labels("all", COMPLETION) != []
    assert labels("completion", COMPLETION) == labels("assistant", COMPLETION)
    assert labels("assistant", CHAT) != labels("all", CHAT)
    assert labels("completion", CHAT) == labels("all", CHAT)


@pytest.mark.parametrize(
    ("asked", "rows", "refused"),
    [
        ("assistant", [TEXT], True),
        ("auto", [TEXT], False),
        ("all", [TEXT], False),
        ("assistant", [CHAT], False),
        ("assistant", [COMPLETION], False),
        ("assistant", [CHAT, TEXT], True),
        ("auto", [CHAT, TEXT], False),
    ],
)
def test_loss_on_answers_is_refused_for_rows_without_any(
    tmp_path: Path, asked: str, rows: list[dict[str, Any]], refused: bool
) -> None:
    """TRL 1.16 refuses ``assistant_only_loss`` on plain text, too; also where the rows are in the cache."""
    train = [{"path": str(write_jsonl(tmp_path / f"{n}.jsonl", [row] * 4))} for n, row in enumerate(rows)]
    tokenizer = make_tokenizer(tmp_path / "tokenizer", chat_template=PLAIN)
    data = DataSection.model_validate({"train": train, "train_on": asked})
    found = look_at_sets(data, Reading.of(data, row_kind("documents")))[1]
    assert [d.code for d in found] == (["data.text_has_no_answers"] if refused else [])
    prepared_from(train, tokenizer, tmp_path / "cache", train_on="auto")
    refuses = pytest.raises(DataError, match="plain text") if refused else nullcontext()
    with refuses:
        prepared_from(train, tokenizer, tmp_path / "cache", train_on=asked)
