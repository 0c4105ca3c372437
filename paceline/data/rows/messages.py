"""Turns of conversations in all published spellings, as the messages that chat templates read.

A message has ``role`` and ``content``, and what the row gives of ``reasoning_content``, ``tool_calls``,
``tool_call_id`` and ``name``. OpenAI's, ShareGPT's, LLaMA-Factory's and ms-swift's ways to write calls of
tools become ``tool_calls``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Required, TypedDict

from paceline.core.json_types import JsonObject
from paceline.data.rows.tool_calls import calls_of, parsed
from paceline.data.rows.values import Cell, Row, RowError, as_text, is_empty


class Message(TypedDict, total=False):
    """A turn. ``trained``: whether the row itself says that the turn has loss, or has none."""

    role: Required[str]
    content: Required[str]
    reasoning_content: str
    tool_calls: list[JsonObject]
    tool_call_id: str
    name: str
    trained: bool


ROLES = ("system", "developer", "user", "assistant", "tool")
#: Roles under other names. ``CALL``: the turn is a call of tools, written as JSON in its text.
CALL = "call"
_CALLS = dict.fromkeys(("function_call", "tool_call", "tool_calls"), CALL)
_RESULTS = dict.fromkeys(
    ("observation", "tool_response", "function_response", "function", "ipython", "tool_result"), "tool"
)
MESSAGE_ROLES: Mapping[str, str] = {**{role: role for role in ROLES}, **_CALLS, **_RESULTS}
#: The same, and ShareGPT's, which stand under ``role`` as well.
ROLE_NAMES: Mapping[str, str] = {
    **MESSAGE_ROLES,
    **dict.fromkeys(("human",), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bot", "model"), "assistant"),
}

REASONING = ("reasoning_content", "reasoning", "thinking", "thought", "thoughts")
#: Fields that set whether a turn has loss; the second kind also does so for turns of other roles.
WEIGHTS = ("weight", "loss_weight", "loss", "loss_mask")
TRAINS = ("train", "training", "trainable", "train_on_turn")
#: Fields of a turn that are read, beside its role and its content.
READ = frozenset({*REASONING, *WEIGHTS, *TRAINS, "tool_calls", "function_call", "tool_call_id", "name"})
#: Lists of a whole row: of these, those that mean turns may have one item a turn; the others mean tokens.
TURN_LISTS = (*WEIGHTS, *TRAINS, "loss_masks", "weights", "train_mask")
_OF_TOKENS = ("completion_mask", "assistant_mask", "assistant_masks", "response_mask", "prompt_mask")
LOSS_LISTS = frozenset({*TURN_LISTS, *_OF_TOKENS})
REASONING_PARTS = ("reasoning", "thinking", "analysis")


def with_listed(turns: Cell, row: Row, column: str) -> Cell:
    """Return turns, each with its item of the row's lists (``loss_mask: [0, 1]``).

    Raises RowError where a list does not have one item a turn, or a turn itself says otherwise.
    """
    for name in TURN_LISTS:
        values = row.get(name)
        if name == column or not isinstance(values, list) or not values or not isinstance(turns, list):
            continue
        if len(values) != len(turns):
            raise RowError("turn_weight", f"'{name}' has {len(values)} items beside {len(turns)} turns")
        key = name if name in READ else WEIGHTS[0]
        made: list[Cell] = []
        for number, (turn, value) in enumerate(zip(turns, values, strict=True), 1):
            if isinstance(turn, Mapping) and turn.get(key, value) not in (value, None):
                raise RowError("turn_weight", f"turn {number}: it and the row's '{name}' disagree")
            made.append({**turn, key: value} if isinstance(turn, Mapping) else turn)
        turns = made
    return turns


def turns_of(turns: Cell, role_key: str, text_key: str) -> list[Message]:
    """Normalise a list of turns. Raises RowError if it is not one."""
    if turns is None:
        raise RowError("missing_column", "no turns")
    if not isinstance(turns, Sequence) or isinstance(turns, (str, bytes)):
        raise RowError("bad_messages", f"{kind_of_value(turns)} instead of a list")
    messages: list[Message] = []
    for number, turn in enumerate(turns, 1):
        if not isinstance(turn, Mapping):
            what = f"turn {number} is {kind_of_value(turn)}, not an object with '{role_key}' and '{text_key}'"
            raise RowError("bad_messages", what)
        called = any(not is_empty(turn.get(name)) for name in ("tool_calls", "function_call"))
        if role_key not in turn or not (text_key in turn or called):
            keys = ", ".join(turn)[:60] or "nothing"
            what = f"turn {number} has no '{role_key}' and '{text_key}' (it has {keys})"
            raise RowError("bad_messages", what)
        if is_struct_of_lists(turn):
            raise RowError("bad_messages", f"{kind_of_value(turn)} instead of a list of turns")
        named = str(turn[role_key])
        role = ROLE_NAMES.get(named)
        if role is None:
            raise RowError("unknown_role", f"turn {number}: '{named}'")
        message = _turn(turn, role, text_key, number)
        # The model writes its text and its calls in one turn, also where the row gives them as several; a
        # turn of calls that says more of itself (its loss, reasoning) stays one.
        before = messages[-1] if messages else None
        alike = before is not None and message.get("trained") == before.get("trained")
        plain = message.keys() <= {"role", "content", "tool_calls", "trained"}
        if role == CALL and before is not None and before["role"] == "assistant" and alike and plain:
            before["tool_calls"] = [*before.get("tool_calls", []), *message["tool_calls"]]
        else:
            messages.append(message)
    return messages


def turns_of_any(turns: Cell) -> list[Message]:
    """Normalise a list of turns with the keys of messages or of ShareGPT. Raises RowError."""
    first = turns[0] if isinstance(turns, list) and turns else {}
    keys = ("from", "value") if isinstance(first, Mapping) and "from" in first else ("role", "content")
    return turns_of(turns, *keys)


def is_struct_of_lists(value: Cell) -> bool:
    """Whether it is what ``datasets`` writes for ``Sequence({"role": …, "content": …})``."""
    return isinstance(value, Mapping) and bool(value) and all(isinstance(v, list) for v in value.values())


def kind_of_value(value: Cell) -> str:
    """Say what a value is that should be turns, or one of them."""
    if is_struct_of_lists(value):
        return "an object of lists"
    if isinstance(value, Mapping):
        return "one object"
    if isinstance(value, (list, tuple)):
        return "a list"
    return "a text" if isinstance(value, str) else f"a value of type {type(value).__name__}"


def turns_or_text(value: Cell, name: str, role: str) -> list[Message]:
    """Normalise a text (with ``role``), one turn, or a list of turns. Raises RowError."""
    if value is None:
        raise RowError("missing_column", f"no '{name}'")
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, list):
        return [{"role": role, "content": as_text(value, name)}]
    return turns_of_any(value)


def _turn(turn: Row, role: str, text_key: str, number: int) -> Message:
    content, thought = _content(turn.get(text_key), text_key)
    if role == CALL:
        message: Message = {
            "role": "assistant",
            "content": "",
            "tool_calls": calls_of(parsed(content), number),
        }
    else:
        message = {"role": role, "content": content}
    written = next((name for name in REASONING if not is_empty(turn.get(name))), None)
    if written is not None and not thought.strip():
        thought = as_text(turn[written], written)
    if thought.strip():
        message["reasoning_content"] = thought
    given = next((turn[k] for k in ("tool_calls", "function_call") if not is_empty(turn.get(k))), None)
    if given is not None:
        if role == CALL:
            raise RowError("bad_tool_call", f"turn {number} has calls in its text and in a field")
        message["tool_calls"] = calls_of(parsed(given), number)
    for key in ("name", "tool_call_id"):
        if is_empty(turn.get(key)):
            continue
        text = as_text(turn[key], key)
        if key == "name":
            message["name"] = text
        else:
            message["tool_call_id"] = text
    trained = _trained(turn, message["role"], number)
    if trained is not None:
        message["trained"] = trained
    return message


def _content(value: Cell, name: str) -> tuple[str, str]:
    """Return (text, reasoning) of a turn's content; parts of type ``thinking`` are its reasoning."""
    if not isinstance(value, list):
        return as_text(value, name), ""
    thoughts: list[str] = []
    others: list[Cell] = []
    for part in value:
        if isinstance(part, Mapping) and part.get("type") in REASONING_PARTS:
            thoughts.append(as_text(thought_in(part)[1], name))
        else:
            others.append(part)
    return as_text(others, name) if others else "", "\n".join(thoughts)


def thought_in(part: Row) -> tuple[str, Cell]:
    """Return the field of a part of reasoning that holds it, and its value."""
    return next(((k, part[k]) for k in (str(part["type"]), "text", "content") if part.get(k)), ("text", ""))


def _trained(turn: Row, role: str, number: int) -> bool | None:
    """Return whether the turn says that it has loss; None if it does not say."""
    found: dict[bool, str] = {}
    for name in (*WEIGHTS, *TRAINS):
        value = turn.get(name)
        if is_empty(value):
            continue
        if not isinstance(value, (bool, int, float)) or value not in (0, 1):  # True is 1, false 0
            raise RowError("turn_weight", f"turn {number}: '{name}' is {str(value)[:20]}")
        if role == "assistant" or not value or name in TRAINS:
            found[bool(value)] = name
    if len(found) > 1:
        raise RowError("turn_weight", f"turn {number}: '{found[True]}' and '{found[False]}' disagree")
    return next(iter(found), None)


def is_answer(turn: Cell) -> bool:
    """Whether a turn as a row has it is the assistant's."""
    role = turn.get("role", turn.get("from")) if isinstance(turn, Mapping) else None
    return ROLE_NAMES.get(str(role)) == "assistant"


def says_something(message: Message) -> bool:
    """Whether a turn has text, reasoning or calls."""
    return bool(message["content"].strip() or message.get("tool_calls") or message.get("reasoning_content"))
