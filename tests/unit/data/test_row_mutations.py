"""Whatever one takes away from a row changes what is trained on, was counted as not used, or is refused.

Every kind of row, every field at every depth, through the reader of that kind and a chat template.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from conversation_templates import THINKS
from data_fixtures import make_tokenizer

from paceline.data.chat_template.encode import Encoded, Encoder
from paceline.data.rows.examples import Reading, RowReader
from paceline.data.rows.kinds.base import row_kind
from paceline.data.rows.row_errors import Problem
from paceline.data.tokenizer.load import TokenizerSpec, open_tokenizer

DOCUMENTS = "{% for d in documents or [] %}<{{ d.title }}: {{ d.text }}>{% endfor %}"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "description": "where"}}}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Look.", "parameters": SCHEMA}}
ARGUMENTS = {"city": "Oslo", "when": {"day": 1, "hours": [1, 2]}}
CALL = {
    "id": "c00000001",
    "type": "function",
    "index": 0,
    "function": {"name": "weather", "arguments": ARGUMENTS, "strict": True},
}
AS_TEXT = json.dumps({"name": "weather", "arguments": {"city": "Oslo"}, "thought": "x"})
SYSTEM = {"role": "system", "content": "Be short."}
ASKED = {"role": "user", "content": "How warm is it?", "name": "Ada", "id": "m1"}
CALLING = {"role": "assistant", "content": "I look.", "reasoning_content": "Not known.", "tool_calls": [CALL]}
OTHER_CALL = {
    "role": "assistant",
    "function_call": {"name": "weather", "arguments": '{"city": "Rome"}', "zq": 1},
}
RESULT = {"role": "tool", "content": "4 C", "name": "weather", "tool_call_id": "c00000001"}
THOUGHT = {"type": "thinking", "thinking": "Now known.", "signature": "s"}
ANSWER = {
    "role": "assistant",
    "content": [THOUGHT, {"type": "text", "text": "Four.", "cache_control": {"type": "ephemeral"}}],
    "reasoning": "beside the part",
}
LAST = {"role": "assistant", "content": "As said: four.", "reasoning_content": "Again.", "weight": 1, "zq": 2}
TALK = [SYSTEM, ASKED, CALLING, RESULT, {**ANSWER, "weight": 0}, ASKED, LAST]
TRIED = [ASKED, OTHER_CALL, {**RESULT, "content": "no"}, {"role": "assistant", "content": "No idea."}]
BESIDE: dict[str, Any] = {
    "tools": [TOOL],
    "documents": [{"title": "t1", "text": "It is 4 C.", "url": "x"}],
    "chat_template_kwargs": {"enable_thinking": True, "zq": 1},
    "id": 7,
    "mood": "calm",
}
SHARED = [SYSTEM, ASKED]
#: name -> (kind of row, the row)
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "messages": ("documents", {"messages": TALK, **BESIDE}),
    "messages, system beside": ("documents", {"messages": TALK[1:], "system": "Be short.", **BESIDE}),
    "calls as text": (
        "documents",
        {
            "messages": [
                ASKED,
                {"role": "assistant", "content": "I look."},
                {"role": "tool_call", "content": AS_TEXT, "loss": False},
                {"role": "tool_response", "content": "4 C"},
                {"role": "assistant", "content": "Four."},
            ],
            "tools": json.dumps([TOOL]),
        },
    ),
    "sharegpt": (
        "documents",
        {
            "conversations": [
                {"from": "human", "value": "How warm is it?"},
                {"from": "function_call", "value": AS_TEXT},
                {"from": "observation", "value": "4 C"},
                {"from": "gpt", "value": "Four.", "train": 0},
                {"from": "human", "value": "And now?"},
                {"from": "gpt", "value": "Five."},
            ],
            "system": "Be short.",
            "tools": json.dumps([TOOL]),
            "zq": 1,
        },
    ),
    "alpaca": (
        "documents",
        {"instruction": "Say", "input": "x", "output": "y", "system": "S", "history": [["a", "b"]], "zq": 1},
    ),
    "query": ("documents", {"query": "q?", "response": "r", "history": [["a", "b"]], "system": "S", "zq": 1}),
    "completion of turns": ("documents", {"prompt": SHARED, "completion": TALK[2:], **BESIDE}),
    "completion, one turn": ("documents", {"prompt": "How warm?", "completion": LAST, **BESIDE}),
    "pairs": ("pairs", {"prompt": SHARED, "chosen": TALK[2:], "rejected": TRIED[1:], "margin": 2, **BESIDE}),
    "pairs, prompt repeated": (
        "pairs",
        {"prompt": "How warm is it?", "chosen": TALK, "rejected": [SYSTEM, *TRIED], **BESIDE},
    ),
    "pairs without a prompt": ("pairs", {"chosen": TALK, "rejected": [SYSTEM, *TRIED], **BESIDE}),
    "rejected messages": ("pairs", {"messages": TALK, "rejected_messages": [SYSTEM, *TRIED], **BESIDE}),
    "rejected response": ("pairs", {"messages": TALK, "rejected_response": "No.", **BESIDE}),
    "labelled": ("labelled", {"prompt": SHARED, "completion": TALK[2:], "label": True, **BESIDE}),
    "labelled messages": ("labelled", {"messages": TALK, "label": False, **BESIDE}),
    "prompts": ("prompts", {"prompt": TALK[:4], "answer": "4", "solution": "s", **BESIDE}),
    "prompts, answer in the turns": ("prompts", {"messages": [*SHARED, CALLING], **BESIDE}),
    "prompts, two answers": ("prompts", {"messages": TALK, "answer": "4", **BESIDE}),
    "classified": ("classified", {"messages": TALK, "label": ["a", "b"], "system": "S", **BESIDE}),
}
#: Fields that say what holds without them: a tool and a call are functions, a text part is text.
CONSTANT = (("type", "function"), ("type", "text"))


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    folder = make_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    spec = TokenizerSpec(str(folder), chat_template=DOCUMENTS + THINKS)
    return Encoder(open_tokenizer(spec), "assistant")


def outcome(kind: str, row: dict[str, Any], coder: Encoder) -> tuple[list[Any], set[str]] | None:
    """(what is trained on, names that were counted); None for a row that is refused."""
    rows = row_kind(kind)
    shape = rows.detect([ROWS_BY_ID.get(id(row), row)], where="x", requested="auto", mapping=None)
    reader = RowReader(shape, Reading(kind=rows))
    examples = reader.read(row, "here")
    if isinstance(examples, Problem):
        return None
    encode = (
        coder.encode_prompts if rows.answered else coder.encode if rows.learns_tokens else coder.encode_whole
    )
    trained: list[Any] = []
    counted = set(reader.unread)
    for example, found in zip(examples, encode(list(examples)), strict=True):
        if not isinstance(found, Encoded):
            return None
        counted |= set(found.left_out)
        trained.append(
            (found.input_ids.tolist(), found.labelled.tolist(), dict(example.values), example.facts)
        )
    return trained, counted


ROWS_BY_ID: dict[int, dict[str, Any]] = {}


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key and every element, at every depth."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if (key, item) not in CONSTANT:
            yield (*at, key)
        yield from paths(item, (*at, key))


def without(row: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    less = copy.deepcopy(row)
    inner: Any = less
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return less


def named(path: tuple[Any, ...], row: dict[str, Any], counted: set[str]) -> bool:
    """Whether the field was counted, or one that it lies in, or all that it holds; parts of reasoning are
    called as the field is.
    """
    inner: Any = row
    for key in path:
        inner = inner[key]
    field = next(str(key) for key in reversed(path) if isinstance(key, str))
    if inner is THOUGHT or inner == THOUGHT["thinking"]:
        field = "reasoning_content"
    places = [name.partition(" ")[0].replace("[]", "").split(".") for name in counted]
    if (
        isinstance(inner, dict)
        and inner is not THOUGHT
        and all(any(place[-2:] == [field, key] for place in places) for key in inner)
    ):
        return True
    keys = [key for key in path if isinstance(key, str)]
    return any(place[-1] == field or place == keys[: len(place)] for place in places)


@pytest.mark.parametrize("name", ROWS)
def test_what_is_taken_away_changes_what_is_trained_on_or_was_counted(name: str, coder: Encoder) -> None:
    kind, row = ROWS[name]
    whole = outcome(kind, row, coder)
    assert whole is not None
    trained, counted = whole
    lost = []
    for path in paths(row):
        less = without(row, path)
        ROWS_BY_ID[id(less)] = row  # the data set's first row tells its shape
        found = outcome(kind, less, coder)
        if found is not None and found[0] == trained and not named(path, row, counted):
            lost.append(path)
    assert lost == []
