"""Find the content of a conversation that a chat template leaves out: refused if it carries meaning, else
counted.

A field is used if the text changes without it. Templates may leave out reasoning of earlier turns; tools,
calls and whole turns are never left out silently.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from paceline.core.json_types import Json, JsonObject, as_object
from paceline.data.chat_template.render import ChatTemplate
from paceline.data.images.slots import has_slot, pieces_of
from paceline.data.rows.formats import Example
from paceline.data.rows.messages import Message
from paceline.data.rows.values import RowError, is_empty

Render = Callable[[Example], str]
_MOST_KNOWN = 1 << 14
# What templates look for in a turn's text.
_LOOKED_FOR = ("<think>", "</think>", "<tool_response>", "[/THINK]", "<|channel|>")
#: What stands before the name of a row's option among the parts that are left out.
OPTION = "chat_template_kwargs."
_LONG = 24  # characters of a text that does not stand in a conversation twice by chance
# Of a schema's fields, those whose keys are names that the schema gives.
_NAMES = ("properties", "$defs", "definitions", "patternProperties")
_DEEPEST = 12


class DroppedContent(NamedTuple):
    """Content that must not be left out: a key of ``problems.REASONS``, and its place."""

    reason: str
    detail: str = ""


class DroppedContentFinder:
    """Find the content that ``template`` left out; ``render`` gives the text of a conversation. Raises
    RowError."""

    def __init__(self, template: ChatTemplate, render: Render) -> None:
        self._template = template
        self._render = render
        self._writes_reasoning: bool | None = None
        self._known: dict[str, bool] = {}

    def names(self, example: Example, text: str) -> tuple[str, ...]:
        """Return the unused fields of ``example``, whose rendering is ``text``.

        Raises RowError for tools, calls, turns and reasoning that the template cannot render at all.
        """
        looks = (self._turns, self._fields, self._beside)
        drops = [drop for look in looks for drop in look(example, text)]
        lost: dict[str, str] = {}
        for drop in drops:
            if isinstance(drop, DroppedContent):
                lost.setdefault(drop.reason, drop.detail)
        if lost:
            (reason, detail), *also = lost.items()
            raise RowError(reason, detail, tuple(also))
        return tuple(dict.fromkeys(drop for drop in drops if isinstance(drop, str)))

    def _turns(self, example: Example, text: str) -> Iterator[str | DroppedContent]:
        """Check every turn's content."""
        contents = [message["content"].strip() for message in example.messages]
        for number, (message, content) in enumerate(zip(example.messages, contents, strict=True)):
            if not content:
                continue
            there = (
                all(piece in text for piece in pieces_of(content)) if has_slot(content) else content in text
            )
            # So long a text stands there because of this turn: no rendering is needed
            if there and len(content) >= _LONG and contents.count(content) == 1:
                continue
            # Another content, not an empty one: templates may skip an empty turn.
            other: Message = {**message, "content": "paceline"}
            if there and not self._is_idle(example, text, number, other, "content"):
                continue
            if there or self._same(self._with(example, number, other), text):
                if message.get("tool_calls"):  # the turn is there: its call is looked at below
                    yield "messages[].content (of turns that call tools)"
                    continue
                yield DroppedContent("turn_left_out", f"turn {number + 1} ({message['role']})")
            elif message["role"] == "assistant":
                yield "messages[].content (part of an answer)"

    def _fields(self, example: Example, text: str) -> Iterator[str | DroppedContent]:
        """Check the turns' fields other than their content."""
        for number, message in enumerate(example.messages):
            if message["role"] == "developer" and "developer" not in self._template.text:
                yield "messages[].role (developer, written as system)"
            thought = message.get("reasoning_content", "").strip()
            seen = not thought or (len(thought) >= _LONG and thought in text)
            silent = _without(message, "reasoning_content")
            if not seen and self._is_idle(example, text, number, silent, "reasoning"):
                earlier = "messages[].reasoning_content (of earlier turns)"
                yield earlier if self._can_reason() else DroppedContent("reasoning", f"turn {number + 1}")
            yield from self._calls(example, text, number, message)
            for name in ("name", "tool_call_id"):
                if name in message and self._is_idle(example, text, number, _without(message, name), name):
                    yield f"messages[].{name}"

    def _calls(
        self, example: Example, text: str, number: int, message: Message
    ) -> Iterator[str | DroppedContent]:
        """Check each call of a turn, with its arguments and id."""
        calls = message.get("tool_calls", [])
        fewer: list[list[JsonObject]] = [[*calls[:n], *calls[n + 1 :]] for n in range(len(calls))]
        turns = [_with_calls(message, rest) for rest in fewer]
        functions = [as_object(call["function"]) for call in calls]
        if any(self._is_idle(example, text, number, turn, f"call {call}") for call, turn in enumerate(turns)):
            yield DroppedContent("tool_calls", f"turn {number + 1}")
            return
        # The call without its arguments: the same text means that they are lost.
        bare = [{**c, "function": {**f, "arguments": {}}} for c, f in zip(calls, functions, strict=True)]
        if any(not is_empty(function["arguments"]) for function in functions) and self._is_idle(
            example, text, number, _with_calls(message, bare), "arguments"
        ):
            yield DroppedContent("tool_calls", f"turn {number + 1}: the arguments")
            return
        unnamed = [{key: value for key, value in call.items() if key != "id"} for call in calls]
        if unnamed != calls and self._is_idle(example, text, number, _with_calls(message, unnamed), "ids"):
            yield "messages[].tool_calls[].id"

    def _beside(self, example: Example, text: str) -> Iterator[str | DroppedContent]:
        """Check tools, documents and options."""
        if example.tools:
            if self._once("tools", example, replace(example, tools=()), text):
                yield DroppedContent("tools")
            else:
                yield from self._schemas(example, text)
        if example.documents and self._same(replace(example, documents=()), text):
            yield DroppedContent("documents")
        elif example.documents:
            yield from self._documents(example, text)
        for name in example.template_kwargs:
            rest = {key: value for key, value in example.template_kwargs.items() if key != name}
            if self._once(f"option {name}", example, replace(example, template_kwargs=rest), text):
                yield OPTION + name

    def _schemas(self, example: Example, text: str) -> Iterator[str]:
        """Check the fields of every tool, unless its whole schema is in the text."""
        for number, tool in enumerate(example.tools):
            if any(form in text for form in written_forms(tool)):
                continue
            for path, pattern in schema_fields(tool):
                fewer = (*example.tools[:number], without_field(tool, path), *example.tools[number + 1 :])
                if self._once(f"tools[].{pattern}", None, replace(example, tools=fewer), text):
                    yield f"tools[].{pattern.partition(' ')[0]}"

    def _documents(self, example: Example, text: str) -> Iterator[str]:
        """Check the fields of every document."""
        for number, document in enumerate(example.documents):
            for name in document:
                less = {key: value for key, value in document.items() if key != name}
                others = (*example.documents[:number], less, *example.documents[number + 1 :])
                if self._once(f"document {name}", example, replace(example, documents=others), text):
                    yield f"documents[].{name}"

    def _is_idle(self, example: Example, text: str, turn: int, other: Message, field: str) -> bool:
        """Whether the text stays the same with ``other``, which lacks the field ``field``, in place of a
        turn.

        Rendering again for every field of every turn would take most of the time, so the result is cached per
        shape of conversation.
        """
        return self._once(f"{turn} {field}", example, self._with(example, turn, other), text)

    def _once(self, question: str, example: Example | None, other: Example, text: str) -> bool:
        """Whether ``other`` gives the same text; cached by ``question`` and the shape of ``example``."""
        key = question if example is None else f"{question} {_shape(example)}"
        if key not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                # Rows of many shapes: what is cheap to find out again is forgotten
                self._known.clear()
            self._known[key] = self._same(other, text)
        return self._known[key]

    def _same(self, example: Example, text: str) -> bool:
        """Whether the text is the same; False if the template raises because a field is missing."""
        try:
            return self._render(example) == text
        except RowError:
            return False

    def _can_reason(self) -> bool:
        """Whether the template writes the reasoning of the last turn."""
        if self._writes_reasoning is None:
            question: Message = {"role": "user", "content": "a"}
            plain: Message = {"role": "assistant", "content": "b"}
            thought: Message = {**plain, "reasoning_content": "paceline"}
            try:
                texts = [self._render(Example(messages=(question, turn))) for turn in (plain, thought)]
                self._writes_reasoning = texts[0] != texts[1]
            except RowError:
                self._writes_reasoning = False
        return self._writes_reasoning

    def _with(self, example: Example, turn: int, message: Message) -> Example:
        messages: Sequence[Message] = example.messages
        return replace(example, messages=(*messages[:turn], message, *messages[turn + 1 :]))


def _shape(example: Example) -> str:
    """Return the structure of a conversation, on which templates branch, without its words."""
    turns = (
        (
            *sorted(message),
            message["role"],
            bool(message["content"].strip()),
            [mark in message["content"] for mark in _LOOKED_FOR],
            has_slot(message["content"]),
            [sorted(call) for call in message.get("tool_calls", ())],
        )
        for message in example.messages
    )
    beside = len(example.tools), len(example.documents), dict(example.template_kwargs)
    return repr((*turns, *beside))


def _with_calls(message: Message, calls: list[JsonObject]) -> Message:
    """Return a turn with other calls; without the field if there are none."""
    return {**message, "tool_calls": calls} if calls else _without(message, "tool_calls")


def _without(message: Message, name: str) -> Message:
    # a TypedDict without one of its optional keys
    return {key: value for key, value in message.items() if key != name}  # type: ignore[return-value]


def written_forms(tool: JsonObject) -> Iterator[str]:
    """Yield the common renderings of a whole tool: JSON on one line, or indented."""
    for schema in (tool, tool.get("function")):
        yield json.dumps(schema, ensure_ascii=False)
        yield json.dumps(schema, ensure_ascii=False, indent=4)
        yield json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def schema_fields(
    value: Json, path: tuple[str | int, ...] = (), pattern: str = "", kind: str = ""
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield (path, pattern) of every field of a tool. Fields of equal patterns are rendered alike: in a
    pattern ``*`` stands for names from the schema, and types that templates distinguish follow a space.
    """
    if len(path) > _DEEPEST:
        return
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from schema_fields(item, (*path, number), f"{pattern}[]", kind)
    if isinstance(value, dict):
        kind = str(value["type"]) if isinstance(value.get("type"), str) else kind
        for key, item in value.items():
            below = f"{pattern}.{'*' if path and path[-1] in _NAMES else key}".lstrip(".")
            yield (*path, key), f"{below} {kind} {type(item).__name__}"
            yield from schema_fields(item, (*path, key), below, kind)


def without_field(tool: JsonObject, path: Sequence[str | int]) -> JsonObject:
    """Return the tool without the field at ``path``."""
    copy: JsonObject = json.loads(json.dumps(tool))
    inner: Json = copy
    for key in path[:-1]:
        inner = inner[key]  # type: ignore[index, call-overload]
    del inner[path[-1]]  # type: ignore[arg-type, union-attr]
    return copy
