"""Conversations with tools, reasoning and turns of their own weight: what is read, labelled and left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conversation_templates import PARTS, PLAIN, STRINGS, THINKS
from data_fixtures import make_tokenizer

from paceline.data.chat_template.encode import Encoded, Encoder
from paceline.data.rows.examples import Reading, RowReader
from paceline.data.rows.formats import Example, Shape
from paceline.data.rows.kinds.base import DOCUMENTS
from paceline.data.rows.kinds.preference_pairs import PAIRS
from paceline.data.rows.messages import turns_of, turns_of_any
from paceline.data.rows.row_errors import Problem
from paceline.data.rows.tools_and_documents import with_beside
from paceline.data.rows.values import RowError
from paceline.data.sources.locate import locate
from paceline.data.sources.readers import read_rows
from paceline.data.tokenizer.load import TokenizerSpec, open_tokenizer

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"properties": {"city": {}}}}}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
ASKED, ANSWERED = {"role": "user", "content": "How warm?"}, {"role": "assistant", "content": "Four."}
RESULT = {"role": "tool", "content": "4 C"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def encoder(folder: Path, template: str, train_on: str = "assistant") -> Encoder:
    return Encoder(open_tokenizer(TokenizerSpec(str(folder), chat_template=template)), train_on)


def read(row: dict[str, Any]) -> Example:
    found = RowReader(Shape("messages", {"messages": "messages"}), Reading()).read(row, "here")
    assert not isinstance(found, Problem), found
    return found[0]


def parts(coder: Encoder, row: dict[str, Any]) -> tuple[str, list[str], tuple[str, ...]]:
    """The whole text, its labelled pieces, and the fields that were left out."""
    (found,) = coder.encode([read(row)])
    assert isinstance(found, Encoded), found.reason
    pieces: list[list[int]] = []
    before = False
    for token, on in zip(found.input_ids.tolist(), found.labelled.tolist(), strict=True):
        if on and not before:
            pieces.append([])
        if on:
            pieces[-1].append(token)
        before = on
    decode = coder.tokenizer.decode
    return decode(found.input_ids.tolist()), [decode(p) for p in pieces], found.left_out


def reason(coder: Encoder, row: dict[str, Any]) -> RowError:
    (found,) = coder.encode([read(row)])
    assert isinstance(found, RowError)
    return found


# Every published spelling of one conversation.
OPENAI = [ASKED, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT, ANSWERED]
TEXT_CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'
SPELLINGS: dict[str, list[dict[str, Any]]] = {
    "openai": OPENAI,
    "arguments as text": [
        ASKED,
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}],
        },
        RESULT,
        ANSWERED,
    ],
    "function_call": [
        ASKED,
        {
            "role": "assistant",
            "content": "",
            "function_call": {"name": "weather", "arguments": '{"city": "Oslo"}'},
        },
        {"role": "function", "content": "4 C"},
        ANSWERED,
    ],
    "sharegpt": [
        {"from": "human", "value": "How warm?"},
        {"from": "function_call", "value": TEXT_CALL},
        {"from": "observation", "value": "4 C"},
        {"from": "gpt", "value": "Four."},
    ],
    "swift": [
        ASKED,
        {"role": "tool_call", "content": TEXT_CALL},
        {"role": "tool_response", "content": "4 C"},
        ANSWERED,
    ],
    "flat": [ASKED, {"role": "assistant", "tool_calls": [json.loads(TEXT_CALL)]}, RESULT, ANSWERED],
    "parts": [
        ASKED,
        {"role": "assistant", "content": [], "tool_calls": json.dumps([CALL])},
        {"role": "ipython", "content": [{"type": "text", "text": "4 C"}]},
        ANSWERED,
    ],
}


@pytest.mark.parametrize("spelling", list(SPELLINGS))
@pytest.mark.parametrize("template", [THINKS, STRINGS], ids=["thinks", "strings"])
def test_all_spellings_of_a_call_give_the_same_tokens(spelling: str, template: str, folder: Path) -> None:
    coder = encoder(folder, template)
    example = Example(messages=tuple(turns_of_any(SPELLINGS[spelling])), tools=(TOOL,))
    usual = Example(messages=tuple(turns_of_any(OPENAI)), tools=(TOOL,))
    found, want = coder.encode([example, usual])
    assert isinstance(found, Encoded) and isinstance(want, Encoded)
    assert found.input_ids.tolist() == want.input_ids.tolist()
    assert found.labelled.tolist() == want.labelled.tolist() and found.labelled.any()


def test_calls_results_and_answers_are_labelled_by_turn(folder: Path) -> None:
    text, learnt, left_out = parts(encoder(folder, THINKS), {"messages": OPENAI, "tools": [TOOL]})
    assert learnt == [
        '<think>\n\n</think>\n<tool_call>weather {"city": "Oslo"}</tool_call><|im_end|>',
        "<think>\n\n</think>\nFour.<|im_end|>",
    ]
    assert '"name": "weather"' in text and "<tool_response>4 C" in text and left_out == ()


def test_results_that_stand_in_the_calling_turn_have_no_loss(folder: Path) -> None:
    call = {**CALL, "id": "c1"}
    turns = [ASKED, {"role": "assistant", "tool_calls": [call]}, {**RESULT, "tool_call_id": "c1"}, ANSWERED]
    text, learnt, _ = parts(encoder(folder, STRINGS), {"messages": turns, "tools": [TOOL]})
    assert 'CALL C1 weather{"city": "Oslo"}<|end|>RESULT 4 C;' in text
    assert learnt == ['CALL C1 weather{"city": "Oslo"}<|end|>', "Four.<|end|>"]


def test_a_template_that_needs_ids_gets_them(folder: Path) -> None:
    text, learnt, _ = parts(encoder(folder, STRINGS), {"messages": OPENAI, "tools": [TOOL]})
    assert "CALL 000000001 weather" in text and "RESULT 4 C;" in text and len(learnt) == 2


def test_reasoning_that_the_template_drops_from_earlier_turns_is_named(folder: Path) -> None:
    turns = [ASKED, {**ANSWERED, "reasoning_content": "It is May."}, ASKED, {**ANSWERED, "thinking": "June"}]
    text, learnt, left_out = parts(encoder(folder, THINKS), {"messages": turns})
    assert "It is May" not in text
    assert learnt == ["Four.<|im_end|>", "<think>\nJune\n</think>\nFour.<|im_end|>"]
    assert left_out == ("messages[].reasoning_content (of earlier turns)",)


@pytest.mark.parametrize("key", ["weight", "train", "loss", "trainable"])
def test_a_turn_says_whether_it_has_loss(key: str, folder: Path) -> None:
    turns = [ASKED, {**ANSWERED, key: 0}, ASKED, {"role": "assistant", "content": "Five.", key: True}]
    for template in (
        THINKS,
        PLAIN,
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content }}<|end|>{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    ):
        learnt = parts(encoder(folder, template), {"messages": turns})[1]
        assert len(learnt) == 1 and "Five." in learnt[0] and "Four." not in learnt[0]
    whole = parts(encoder(folder, PLAIN, "all"), {"messages": turns})[1]
    assert not any("Four." in piece for piece in whole) and sum("How warm?" in piece for piece in whole) == 2


def test_a_question_may_be_trained_on(folder: Path) -> None:
    learnt = parts(
        encoder(folder, PLAIN), {"messages": [{**ASKED, "train": True}, {**ANSWERED, "train": False}]}
    )[1]
    assert learnt == ["How warm?<|im_end|>"]
    learnt = parts(encoder(folder, PLAIN), {"messages": [{**ASKED, "weight": 1}, ANSWERED]})[1]
    assert learnt == ["Four.<|im_end|>"], "OpenAI's weight is of answers alone"


def test_options_of_a_row_reach_the_template(folder: Path) -> None:
    row = {"messages": [ASKED, ANSWERED], "chat_template_kwargs": {"enable_thinking": False, "zq": 1}}
    prompts = encoder(folder, THINKS).encode_prompts([read(row), read({"messages": [ASKED, ANSWERED]})])
    assert isinstance(prompts[0], Encoded) and isinstance(prompts[1], Encoded)
    assert len(prompts[0].input_ids) > len(prompts[1].input_ids)
    assert prompts[0].left_out == ("chat_template_kwargs.zq",)
    default = {**row, "chat_template_kwargs": {"enable_thinking": True}}  # read, though it changes nothing
    [same] = encoder(folder, THINKS).encode_prompts([read(default)])
    assert isinstance(same, Encoded) and same.left_out == ()
    assert same.input_ids.tolist() == prompts[1].input_ids.tolist()


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"messages": [ASKED, ANSWERED], "tools": [TOOL]}, "tools"),
        ({"messages": OPENAI}, "turn_left_out"),
        ({"messages": [ASKED, {**ANSWERED, "tool_calls": [CALL]}]}, "tool_calls"),
        ({"messages": [ASKED, {**ANSWERED, "reasoning": "so"}]}, "reasoning"),
        ({"messages": [ASKED, ANSWERED], "documents": [{"title": "a", "text": "b"}]}, "documents"),
        ({"messages": [{"role": "system", "content": "Be short."}, ASKED, ANSWERED]}, "turn_left_out"),
    ],
)
def test_what_a_template_cannot_render_is_refused(row: dict[str, Any], why: str, folder: Path) -> None:
    assert reason(encoder(folder, PLAIN), row).reason == why


def test_a_developer_is_the_system_where_the_template_has_no_such_role(folder: Path) -> None:
    turns = [{"role": "developer", "content": "Be short."}, ASKED, ANSWERED]
    text, _, left_out = parts(encoder(folder, THINKS), {"messages": turns})
    assert text.startswith("<|im_start|>system") and "Be short." in text
    assert left_out == ("messages[].role (developer, written as system)",)


def test_templates_that_read_parts_get_parts(folder: Path) -> None:
    assert parts(encoder(folder, PARTS), {"messages": [ASKED, ANSWERED]})[1] == ["Four.<|im_end|>"]


def test_nulls_of_a_tables_schema_are_left_out() -> None:
    filled = {"name": "weather", "parameters": {"properties": {"city": {"type": "string", "default": None}}}}
    tools = [{"type": "function", "function": {**filled, "strict": None, "description": None}}]
    call = {"function": {"name": "weather", "arguments": {"city": "Oslo", "other": None}}}
    messages = tuple(turns_of_any([ASKED, {"role": "assistant", "tool_calls": [call]}]))
    example = with_beside(Example(messages=messages), {"tools": tools})
    assert example.tools == ({"type": "function", "function": filled},)
    assert example.messages[1]["tool_calls"][0]["function"] == {
        "name": "weather",
        "arguments": {"city": "Oslo"},
    }


def test_nulls_of_a_parquet_schema_are_left_out_of_calls_without_tools(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def row(name: str, arguments: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
        call = {"function": {"name": name, "arguments": arguments}}
        tool = {"function": {"name": name, "parameters": {"properties": schema}}}
        return {"messages": [ASKED, {"role": "assistant", "tool_calls": [call]}], "tools": [tool]}

    rows = [
        row("weather", {"city": "Oslo", "at": {"day": 1}}, {"city": {"anyOf": [{"type": "string"}]}}),
        row("stock", {"ticker": "A"}, {"ticker": {"anyOf": [{"const": 1, "deep": {"x": 1}}]}}),
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    found = [one.value for one in read_rows(locate(str(tmp_path / "rows.parquet"), "train"), "train")]
    for want, value in zip(rows, found, strict=True):
        assert value is not None
        example = with_beside(
            Example(messages=tuple(turns_of_any(value["messages"]))), {"tools": value["tools"]}
        )
        assert (
            example.messages[1]["tool_calls"][0]["function"]
            == want["messages"][1]["tool_calls"][0]["function"]
        )
        assert example.tools[0]["function"] == want["tools"][0]["function"]


def test_a_call_in_a_turn_of_its_own_keeps_its_loss(folder: Path) -> None:
    call = {"role": "tool_call", "content": TEXT_CALL, "loss": False}
    turns = [ASKED, {"role": "assistant", "content": "I look."}, call, RESULT, ANSWERED]
    learnt = parts(encoder(folder, THINKS), {"messages": turns, "tools": [TOOL]})[1]
    assert len(learnt) == 2 and not any("tool_call" in piece for piece in learnt)


@pytest.mark.parametrize("name", ["weight", "loss_weight", "loss", "loss_mask", "train", "trainable"])
def test_every_name_of_a_turn_s_loss_acts(folder: Path, name: str) -> None:
    """verl's ``loss_mask: 0`` was named as a field that is not read, and its answer trained."""
    unlearnt = {"role": "assistant", "content": "I look.", name: 0}
    turns = [ASKED, unlearnt, {"role": "user", "content": "And?"}, {**ANSWERED, name: 1}]
    learnt = "".join(parts(encoder(folder, THINKS), {"messages": turns})[1])
    assert "I look." not in learnt and ANSWERED["content"] in learnt


@pytest.mark.parametrize("name", ["weight", "loss_mask", "train", "weights", "loss_masks"])
def test_a_row_s_list_of_losses_acts_as_its_turns(folder: Path, name: str) -> None:
    """Such a list was noted as a field that is not read, and every answer trained."""
    turns = [
        ASKED,
        {"role": "assistant", "content": "I look."},
        {"role": "user", "content": "And?"},
        ANSWERED,
    ]
    learnt = "".join(parts(encoder(folder, THINKS), {"messages": turns, name: [0, 0, 0, 1]})[1])
    assert "I look." not in learnt and ANSWERED["content"] in learnt


@pytest.mark.parametrize(
    ("row", "detail"),
    [
        ({"messages": [ASKED, ANSWERED], "weights": [0, 1, 1]}, "3 items beside 2 turns"),
        ({"messages": [ASKED, ANSWERED], "train": [0, 0.5]}, "turn 2: "),
        ({"messages": [ASKED, ANSWERED], "assistant_masks": [0, 0, 1]}, "'assistant_masks'"),
        ({"prompt": "a", "completion": "b", "loss_mask": [0, 1]}, "'loss_mask'"),
        ({"text": "a b", "loss_mask": [0, 1]}, "'loss_mask'"),
        ({"messages": [ASKED, {**ANSWERED, "loss": 0}], "loss": [0, 1]}, "turn 2"),
    ],
)
def test_lists_of_losses_that_cannot_act_are_refused(row: dict[str, Any], detail: str) -> None:
    shape = DOCUMENTS.detect([row], where="x", requested="auto", mapping=None)
    found = RowReader(shape, Reading()).read(row, "here")
    assert isinstance(found, Problem) and found.reason == "turn_weight" and detail in found.detail


def test_arguments_that_the_template_does_not_write_are_refused(folder: Path) -> None:
    names = THINKS.replace("{{ call.function.arguments | tojson }}", "")
    found = reason(encoder(folder, names), {"messages": OPENAI, "tools": [TOOL]})
    assert (found.reason, found.detail) == ("tool_calls", "turn 2: the arguments")


@pytest.mark.parametrize(
    ("turn", "why"),
    [
        ({"role": "assistant", "tool_calls": "weather(Oslo)"}, "bad_tool_call"),
        ({"role": "assistant", "tool_calls": [{"function": {"arguments": {"a": 1}}}]}, "bad_tool_call"),
        ({"role": "tool_call", "content": TEXT_CALL, "tool_calls": [CALL]}, "bad_tool_call"),
        ({"role": "assistant", "content": "x", "weight": 0.3}, "turn_weight"),
        ({"role": "assistant", "content": "x", "weight": 0, "train": True}, "turn_weight"),
        ({"role": "martian", "content": "x"}, "unknown_role"),
        ({"role": "assistant"}, "bad_messages"),
    ],
)
def test_turns_that_cannot_be_read(turn: dict[str, Any], why: str) -> None:
    with pytest.raises(RowError) as caught:
        turns_of([ASKED, turn], "role", "content")
    assert caught.value.reason == why


@pytest.mark.parametrize(
    "tools", ["weather", [1], [{"function": {"description": "x"}}], {"type": "function"}]
)
def test_tools_that_cannot_be_read(tools: Any) -> None:
    with pytest.raises(RowError) as caught:
        with_beside(Example(messages=({"role": "user", "content": "a"},)), {"tools": tools})
    assert caught.value.reason == "bad_tools"


def test_pairs_bring_their_tools_along() -> None:
    row = {"prompt": [ASKED], "chosen": OPENAI[1:], "rejected": [ANSWERED], "tools": [TOOL]}
    shape = PAIRS.detect([row], where="x", requested="auto", mapping=None)
    found = RowReader(shape, Reading(kind=PAIRS)).read(row, "here")
    assert not isinstance(found, Problem)
    assert [e.tools for e in found] == [(TOOL,)] * 2 and found[0].messages[1]["tool_calls"] == [CALL]


# Mutation: whatever one takes away from a row changes the tokens, or is counted, or was refused.
RICH: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be short."},
        {**ASKED, "name": "Ada"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Not known.",
            "tool_calls": [{**CALL, "id": "c00000001"}, {**CALL, "id": "c00000002"}],
        },
        {**RESULT, "tool_call_id": "c00000001", "name": "weather"},
        {"role": "assistant", "content": "Four.", "reasoning_content": "Now known.", "weight": 0},
        ASKED,
        {"role": "assistant", "content": "Still four.", "reasoning_content": "As before."},
    ],
    "tools": [TOOL],
    "chat_template_kwargs": {"enable_thinking": True},
}


def removals(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every key of the row and of its turns, and every turn."""
    found = [(*path, key) for key in value] if isinstance(value, dict) else []
    if isinstance(value, list):
        found = [(*path, n) for n in range(len(value))]
    if len(path) < 2:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            found += removals(item, (*path, key)) if isinstance(item, (dict, list)) else []
    return found


@pytest.mark.parametrize(
    "path", [p for p in removals(RICH) if p not in (("messages",), ("tools", 0, "type"))]
)
def test_a_field_that_is_taken_away_changes_the_tokens_or_was_counted(
    path: tuple[Any, ...], folder: Path
) -> None:
    coder = encoder(folder, THINKS)
    (whole,) = coder.encode([read(RICH)])
    assert isinstance(whole, Encoded)
    less = json.loads(json.dumps(RICH))
    inner = less
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    found = RowReader(Shape("messages", {"messages": "messages"}), Reading()).read(less, "here")
    if isinstance(found, Problem):  # a row without it cannot be read
        return
    (other,) = coder.encode(list(found))
    if isinstance(other, RowError):
        return
    same = other.input_ids.tolist() == whole.input_ids.tolist()
    same = same and other.labelled.tolist() == whole.labelled.tolist()
    assert not same or any(str(path[-1]) in name for name in whole.left_out), path
