"""Convert turns of conversations, in all published spellings, to messages for chat templates.

A message has ``role`` and ``content``, and, if the row has them, ``reasoning_content``, ``tool_calls``,
``tool_call_id`` and ``name``. Tool calls in OpenAI's, ShareGPT's, LLaMA-Factory's and ms-swift's formats
become ``tool_calls``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Required, TypedDict

from paceline.core.json_types import JsonObject
from paceline.data.rows.values import Cell, RawRow, Row, RowError, as_json, as_text, is_empty, parse_row


class Message(TypedDict, total=False):
    """A turn. ``trained``: whether the turn has loss, if the row sets it. ``input``: an Alpaca row's input at
    the end of the content, for templates that write it separately.
    """

    role: Required[str]
    content: Required[str]
    reasoning_content: str
    tool_calls: list[JsonObject]
    tool_call_id: str
    name: str
    input: str
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

CALL_FIELDS = ("tool_calls", "function_call")
REASONING = ("reasoning_content", "reasoning", "thinking", "thought", "thoughts")
#: Fields that set whether a turn has loss; the second kind also does so for turns of other roles.
WEIGHTS = ("weight", "loss_weight", "loss", "loss_mask")
TRAINS = ("train", "training", "trainable", "train_on_turn")
#: Fields of a turn that are read, beside its role and its content.
READ = frozenset({*REASONING, *WEIGHTS, *TRAINS, *CALL_FIELDS, "tool_call_id", "name"})
#: Lists of a whole row: of these, those that mean turns may have one item a turn; the others mean tokens.
TURN_LISTS = (*WEIGHTS, *TRAINS, "loss_masks", "weights", "train_mask")
_OF_TOKENS = ("completion_mask", "assistant_mask", "assistant_masks", "response_mask", "prompt_mask")
LOSS_LISTS = frozenset({*TURN_LISTS, *_OF_TOKENS})
REASONING_PARTS = ("reasoning", "thinking", "analysis")
_ARGUMENTS = ("arguments", "parameters")
#: Columns whose text may be turns.
_COLUMNS = (
    *("messages", "conversations", "prompt", "question", "query", "problem", "instruction"),
    *("completion", "response", "output", "answer", "chosen", "rejected", "rejected_messages"),
)
_WRAPPED = ("messages", "conversations")
_PAIRS = ({"role", "content"}, {"from", "value"}, {"role", "tool_calls"})
# A turn's first key, in JSON or in Python's notation
_BEGINS = re.compile(r"""\s*(?:\[\s*)?\{\s*(["'])(?:role|from|content|value|messages|conversations)\1\s*:""")
_KEY = re.compile(r"""(["'])(role|from|content|value|tool_calls)\1\s*:""")


def with_listed(turns: Cell, row: Row, column: str) -> Cell:
    """Return turns, each with its item of the row's lists (``loss_mask: [0, 1]``).

    Raises RowError if a list does not have one item per turn, or contradicts a turn's own value.
    """
    for name in TURN_LISTS:
        values = row.get(name)
        if name == column or not isinstance(values, list) or not values or not isinstance(turns, list):
            continue
        if len(values) != len(turns):
            raise RowError("turn_weight", f"'{name}' has {len(values)} items beside {len(turns)} turns")
        key = name if name in READ else WEIGHTS[0]
        for number, (turn, value) in enumerate(zip(turns, values, strict=True), 1):
            if isinstance(turn, Mapping) and turn.get(key, value) not in (value, None):
                raise RowError("turn_weight", f"turn {number}: it and the row's '{name}' disagree")
        turns = [
            {**turn, key: value} if isinstance(turn, Mapping) else turn
            for turn, value in zip(turns, values, strict=True)
        ]
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
            raise RowError(
                "bad_messages",
                f"turn {number} is {kind_of_value(turn)}, not an object with '{role_key}' and '{text_key}'",
            )
        called = any(not is_empty(turn.get(name)) for name in CALL_FIELDS)
        if role_key not in turn or not (text_key in turn or called):
            keys = ", ".join(turn)[:60] or "nothing"
            raise RowError(
                "bad_messages", f"turn {number} has no '{role_key}' and '{text_key}' (it has {keys})"
            )
        if is_struct_of_lists(turn):
            raise RowError("bad_messages", f"{kind_of_value(turn)} instead of a list of turns")
        if (role := ROLE_NAMES.get(str(turn[role_key]))) is None:
            raise RowError("unknown_role", f"turn {number}: '{turn[role_key]!s}'")
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
    """Whether a value is the form that ``datasets`` writes for ``Sequence({"role": …, "content": …})``."""
    return isinstance(value, Mapping) and bool(value) and all(isinstance(v, list) for v in value.values())


def kind_of_value(value: Cell) -> str:
    """Describe a value that should be turns, or one turn."""
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
    if is_list_of_texts(value):
        raise RowError("several_texts", f"'{name}' holds {len(value)} texts")
    return turns_of_any(value)


def is_list_of_texts(value: Cell) -> bool:
    """Whether a cell is a list of texts in place of turns, such as a ranking of answers."""
    return isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value)


def _turn(turn: Row, role: str, text_key: str, number: int) -> Message:
    content, thought = _content(turn.get(text_key), text_key)
    message: Message = {"role": role, "content": content}
    if role == CALL:
        calls = calls_of(parsed(content), number)
        message = {"role": "assistant", "content": "", "tool_calls": calls}
    written = next((name for name in REASONING if not is_empty(turn.get(name))), None)
    if written is not None and not thought.strip():
        thought = as_text(turn[written], written)
    if thought.strip():
        message["reasoning_content"] = thought
    field = next((name for name in CALL_FIELDS if not is_empty(turn.get(name))), None)
    if field is not None:
        if role == CALL:
            raise RowError("bad_tool_call", f"turn {number} has calls in its text and in a field")
        message["tool_calls"] = calls_of(parsed(turn[field]), number)
    if not is_empty(turn.get("name")):
        message["name"] = as_text(turn["name"], "name")
    if not is_empty(turn.get("tool_call_id")):
        message["tool_call_id"] = as_text(turn["tool_call_id"], "tool_call_id")
    trained = _trained(turn, message["role"], number)
    if trained is not None:
        message["trained"] = trained
    return message


def _content(value: Cell, name: str) -> tuple[str, str]:
    """Return (text, reasoning) of a turn's content; parts of type ``thinking`` are its reasoning."""
    if not isinstance(value, list):
        return as_text(value, name), ""
    thoughts = [part for part in value if isinstance(part, Mapping) and part.get("type") in REASONING_PARTS]
    others = [part for part in value if part not in thoughts]
    thought = "\n".join(as_text(thought_in(part)[1], name) for part in thoughts)
    return as_text(others, name) if others else "", thought


def thought_in(part: Row) -> tuple[str, Cell]:
    """Return the field of a reasoning part that holds the text, and its value."""
    return next(((k, part[k]) for k in (str(part["type"]), "text", "content") if part.get(k)), ("text", ""))


def _trained(turn: Row, role: str, number: int) -> bool | None:
    """Return whether the turn has loss; None if it does not set this."""
    fields: dict[bool, str] = {}  # the last field that says so
    for name in (*WEIGHTS, *TRAINS):
        value = turn.get(name)
        if is_empty(value):
            continue
        if not isinstance(value, (bool, int, float)) or value not in (0, 1):  # True is 1, false 0
            raise RowError("turn_weight", f"turn {number}: '{name}' is {str(value)[:20]}")
        if role == "assistant" or not value or name in TRAINS:
            fields[bool(value)] = name
    if len(fields) > 1:
        raise RowError("turn_weight", f"turn {number}: '{fields[True]}' and '{fields[False]}' disagree")
    return next(iter(fields), None)


def is_answer(turn: Cell) -> bool:
    """Whether a raw turn is the assistant's."""
    role = turn.get("role", turn.get("from")) if isinstance(turn, Mapping) else None
    return ROLE_NAMES.get(str(role)) == "assistant"


def has_meaning(message: Message) -> bool:
    """Whether a turn has text, reasoning or calls."""
    return bool(message["content"].strip() or message.get("tool_calls") or message.get("reasoning_content"))


def parsed(value: Cell) -> Cell:
    """Return the JSON in a text, other values as they are. Raises RowError."""
    if not isinstance(value, str):
        return value
    try:
        content: Cell = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise RowError("bad_tool_call", f"{value.strip()[:60]!r} is not JSON") from error
    return content


def calls_of(value: Cell, number: int) -> list[JsonObject]:
    """Return the calls of turn ``number`` as ``{"type": "function", "id"?, "function": {"name",
    "arguments"}}``. Raises RowError.
    """
    calls: list[JsonObject] = []
    for item in value if isinstance(value, list) else [value]:
        call = parsed(item)
        if not isinstance(call, Mapping):
            raise RowError("bad_tool_call", f"turn {number}: {str(call)[:60]!r} is not a call")
        function = parsed(call.get("function", call))
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RowError("bad_tool_call", f"turn {number}: a call has no name")
        arguments = as_json(function.get(_arguments_field(function), {}), "arguments")
        plain: JsonObject = {
            "name": str(function["name"]),
            "arguments": {} if arguments is None else arguments,
        }
        written: JsonObject = {"id": as_text(call["id"], "id")} if call.get("id") else {}
        calls.append({"type": "function", "function": plain, **written})
    return calls


def unread_in_calls(value: Cell) -> Iterator[str]:
    """Yield the fields of calls, as ``[].function.strict``, that ``calls_of`` does not read."""
    try:
        content = parsed(value)
        calls = [parsed(item) for item in (content if isinstance(content, list) else [content])]
        for call in (call for call in calls if isinstance(call, Mapping)):
            function = parsed(call.get("function", call))
            inside = function if isinstance(function, Mapping) else {}
            fields = ("name", _arguments_field(inside))
            read = ("id", *(("type",) if call.get("type") in (None, "function") else ()))
            if "function" in call:
                yield from (f"[].{name}" for name in _full(call, ("function", *read)))
                yield from (f"[].function.{name}" for name in _full(inside, fields))
            else:
                yield from (f"[].{name}" for name in _full(call, (*fields, *read)))
    except RowError:  # a row whose calls cannot be read is refused
        return


def _arguments_field(function: Mapping[str, Cell]) -> str:
    """Return the first non-empty field with the arguments."""
    return next((name for name in _ARGUMENTS if not is_empty(function.get(name))), _ARGUMENTS[0])


def _full(fields: Mapping[str, Cell], read: tuple[str, ...]) -> list[str]:
    """Return the non-empty fields that are not in ``read``."""
    return [name for name, value in fields.items() if name not in read and not is_empty(value)]


def parsed_turns(rows: Iterable[RawRow], mapping: Mapping[str, str]) -> Iterator[RawRow]:
    """Yield the rows with JSON texts of turns parsed; report an invalid text that begins like turns."""
    names = (*_COLUMNS, *mapping.values())
    for row in rows:
        if row.value is None:
            yield row
            continue
        try:
            turns = {name: _parsed(name, row.value.get(name)) for name in names}
        except RowError as error:
            yield row._replace(value=None, reason=error.reason, detail=error.detail)
            continue
        turns = {name: value for name, value in turns.items() if value is not None}
        yield row._replace(value={**row.value, **turns}) if turns else row


def _parsed(name: str, value: Cell) -> Cell:
    """Return the turns that the text ``value`` holds; None for any other value. Raises RowError."""
    read = value
    if isinstance(value, str) and (quote := _BEGINS.match(value)) is not None:
        try:
            read = parse_row(value)
        except (ValueError, RecursionError) as error:
            keys = {key[2] for key in _KEY.finditer(value)}
            if not any(pair <= keys for pair in _PAIRS):
                return None  # an answer that begins with an object of its own: {"value": 5} …
            python = " (it is Python's notation; write JSON)" if quote[1] == "'" else ""
            raise RowError(
                "bad_messages",
                f"'{name}' is a text that begins like turns and is not JSON{python}: {value[:40]!r}",
            ) from error
    for key in _WRAPPED:
        if isinstance(read, Mapping) and _are_turns(read.get(key)):
            raise RowError(
                "bad_messages",
                f"'{name}' is an object with '{key}': write that list as '{name}', and tools as 'tools'",
            )
    return read if read is not value and _are_turns(read if isinstance(read, list) else [read]) else None


def _are_turns(value: Cell) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(turn, Mapping) and any(keys <= set(turn) for keys in _PAIRS) for turn in value)
    )
