"""Formats are found out from the rows; what does not fit is named with the columns that are there."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from paceline.core.errors import DataError
from paceline.data.rows.formats import Example, detect, normalise
from paceline.data.rows.values import RowError

ASKED = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "alpaca": ("alpaca", {"instruction": "Q", "input": "", "output": "A"}),
    "alpaca with a rendered text": ("alpaca", {"instruction": "Q", "output": "A", "text": "### Q A"}),
    "messages": ("messages", {"messages": ASKED}),
    "messages under conversations": ("messages", {"conversations": ASKED}),
    "messages beside a prompt": ("messages", {"messages": ASKED, "prompt": "Q"}),
    "messages with text parts": (
        "messages",
        {"messages": [ASKED[0], {"role": "assistant", "content": [{"type": "text", "text": "A"}]}]},
    ),
    "sharegpt": (
        "sharegpt",
        {"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]},
    ),
    "prompt and completion": ("prompt_completion", {"prompt": "Q", "completion": "A"}),
    "prompt and completion as turns": ("prompt_completion", {"prompt": [ASKED[0]], "completion": [ASKED[1]]}),
    "prompt and response": ("prompt_completion", {"prompt": "Q", "response": "A"}),
    "question and answer": ("prompt_completion", {"question": "Q", "answer": "A"}),
}


@pytest.mark.parametrize("name", ROWS)
def test_each_format_is_found_and_brought_to_one_shape(name: str) -> None:
    want, row = ROWS[name]
    shape = detect([row], where="f.jsonl")
    assert shape.format == want
    assert normalise(row, shape).messages == tuple(ASKED)
    assert normalise(row, detect([row], where="f.jsonl", requested=want)).messages == tuple(ASKED)


def test_text_stays_text() -> None:
    row = {"text": "Once upon a time", "id": 3}
    assert normalise(row, detect([row], where="f")) == Example(text="Once upon a time")


def test_answers_within_a_prompt_of_turns_are_context_as_in_trl_and_those_of_history_are_learnt() -> None:
    row = {"prompt": [*ASKED, ASKED[0]], "completion": "B"}
    example = normalise(row, detect([row], where="f"))
    assert example.learn_from == 3 and example.messages[3] == {"role": "assistant", "content": "B"}
    row = {"prompt": "Q", "completion": "B", "history": [["Hi", "Hello"]]}
    assert normalise(row, detect([row], where="f")).learn_from == 0


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": ["Q"], "completion": "A"}, "'prompt' holds 1 texts"),
        ({"prompt": {"role": ["user"], "content": ["Q"]}, "completion": "A"}, "an object of lists"),
        ({"prompt": [{"user": "Q"}], "completion": "A"}, "it has user"),
    ],
)
def test_what_stands_in_the_place_of_turns_is_named(row: dict[str, Any], said: str) -> None:
    with pytest.raises(RowError, match=said):
        normalise(row, detect([row], where="f"))


def test_the_question_and_answer_mapping_is_said() -> None:
    assert "question" in detect([{"question": "Q", "answer": "A"}], where="f").note


def test_columns_are_mapped() -> None:
    row = {"ask": "Q", "reply": 72}
    shape = detect([row], where="f", mapping={"prompt": "ask", "completion": "reply"})
    assert normalise(row, shape).messages[1]["content"] == "72"


def test_alpaca_input_system_and_history() -> None:
    row = {
        "instruction": "Add",
        "input": "1 2",
        "output": "3",
        "system": "Be brief",
        "history": [["Hi", "Hello"]],
    }
    turns = normalise(row, detect([row], where="f")).messages
    assert [(m["role"], m["content"]) for m in turns] == [
        ("system", "Be brief"),
        ("user", "Hi"),
        ("assistant", "Hello"),
        ("user", "Add\n1 2"),
        ("assistant", "3"),
    ]


@pytest.mark.parametrize(
    ("row", "options", "code", "said"),
    [
        ({"foo": "x", "bar": "y"}, {}, "data.format_unknown", "foo, bar"),
        (
            {"input_ids": [1], "labels": [-100]},
            {},
            "data.format_unknown",
            "token ids, and Paceline reads texts",
        ),
        ({"foo": "x", "bar": "y"}, {}, "data.format_unknown", "alpaca: instruction + output"),
        ({"dialog": [{"speaker": "a", "said": "b"}]}, {}, "data.format_unknown", "keys: speaker, said"),
        ({"messages": {"role": ["user"], "content": ["a"]}}, {}, "data.format_unknown", "an object of lists"),
        ({"messages": ["a", "b"]}, {}, "data.format_unknown", "a list with a text, not a list of turns"),
        ({"conversations": [[ASKED[0]]]}, {}, "data.format_unknown", "a list with a list, not"),
        ({"messages": ASKED[0], "id": 1}, {}, "data.format_unknown", "are one object, not a list of turns"),
        ({"q": "x", "choices": [{"t": "a"}]}, {}, "data.format_unknown", "columns q, choices"),
        ({"id": 1, "dialog": [{"t": "a"}]}, {}, "data.format_unknown", "keys: t"),
        ({"q": 1, "c": [{"t": "a"}]}, {"mapping": {"messages": "c"}}, "data.format_unknown", "keys: t"),
        ({"instruction;output": "x;y"}, {}, "data.format_unknown", "sep=';'"),
        (
            {"instruction": "x", "output": "y", "prompt": "a", "completion": "b"},
            {},
            "data.format_ambiguous",
            "alpaca, prompt_completion",
        ),
        (
            {"instruction": "x", "output": "y"},
            {"requested": "text"},
            "data.column_missing",
            "instruction, output",
        ),
        ({"a": "x"}, {"mapping": {"prompt": "b"}}, "data.column_missing", "columns: {prompt:"),
        ({"a": "x"}, {"mapping": {"promt": "a"}}, "data.column_unknown", "did you mean 'prompt'"),
        ({"prompt": "x", "chosen": "y", "rejected": "z"}, {}, "data.format_preference", "preference"),
        (
            {"conversations": [{"from": "human", "value": "x"}], "chosen": {}, "rejected": {}},
            {},
            "data.format_preference",
            "chosen",
        ),
    ],
)
def test_rows_of_no_one_format_are_refused(row: dict, options: dict, code: str, said: str) -> None:
    with pytest.raises(DataError) as caught:
        detect([row], where="f.jsonl", **options)
    assert caught.value.diagnostics[0].code == code
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": [ASKED[0], {"role": "assistant", "content": " "}]}, "no_answer"),
        ({"messages": [ASKED[0]]}, "no_answer"),
        ({"messages": []}, "empty"),
        ({"messages": [{"role": "user", "content": ""}, ASKED[1]]}, "empty"),
        ({"messages": None}, "missing_column"),
        ({}, "missing_column"),
        ({"messages": "Q and A"}, "bad_messages"),
        ({"messages": [{"role": "user"}]}, "bad_messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "unknown_role"),
        ({"messages": [{"role": "user", "content": {"image": 1}}, ASKED[1]]}, "not_text"),
        ({"messages": [{"role": "user", "content": "half \ud83d"}, ASKED[1]]}, "not_text"),
    ],
)
def test_rows_that_cannot_be_used_say_why(row: dict, reason: str) -> None:
    shape = detect([{"messages": ASKED}], where="f")
    with pytest.raises(RowError) as caught:
        normalise(row, shape)
    assert caught.value.reason == reason


@pytest.mark.parametrize("asked", [[], [""], ["system"], ["system", ""]])
def test_a_conversation_without_a_question_is_learnt_as_trl_learns_it(asked: list[str]) -> None:
    """Only a conversation in which nothing but an empty question comes before the answer is refused."""
    turns = [{"role": "system" if text else "user", "content": text and "Be brief"} for text in asked]
    read = partial(normalise, {"messages": [*turns, ASKED[1]]}, detect([{"messages": ASKED}], where="f"))
    if asked == [""]:
        with pytest.raises(RowError, match="the question is empty"):
            read()
    else:
        assert [m["role"] for m in read().messages] == [*(t["role"] for t in turns), "assistant"]


def test_the_prompt_is_what_comes_before_the_first_answer() -> None:
    one, two = (
        Example(messages=tuple(ASKED)),
        Example(messages=(ASKED[0], {"role": "assistant", "content": "other"})),
    )
    assert one.prompt == two.prompt
    assert "A" not in one.prompt
