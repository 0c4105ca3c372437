"""What an answer says beside its text: reasoning and calls, read by Transformers' response templates.

A tokenizer brings one, or its family has one in Transformers; without one an answer is text alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transformers.cli.serving.utils import get_response_template
from transformers.utils.chat_parsing import ResponseParser

from paceline.core.json_types import Json, JsonObject, as_object

if TYPE_CHECKING:
    from paceline.evaluation.server.desk import Served

_CALLS = "tool_calls"
_REASONING = ("reasoning_content", "thinking")


@dataclass(frozen=True)
class MessagePart:
    """``kind``: content, reasoning, or call (then ``text`` are its arguments and ``name`` the tool's)."""

    kind: str
    text: str
    name: str = ""


def response_template(served: Served, *, calls: bool) -> JsonObject | None:
    """Return how the model's answers are read, if that is known; ``calls``: also calls of tools."""
    found: JsonObject | None = get_response_template(served.tokenizer, served.model)
    if found is None or calls:
        return found
    fields = found["fields"]
    assert isinstance(fields, dict)
    return {**found, "fields": {name: field for name, field in fields.items() if name != _CALLS}}


class Parser:
    """One answer, read while it comes. What cannot be read is content, as it was written."""

    def __init__(self, template: JsonObject | None, prompt: str, tools: Sequence[Mapping[str, Json]]) -> None:
        self._parser: ResponseParser | None = None
        if template is not None:
            self._parser = ResponseParser(template, prompt, tools=[dict(tool) for tool in tools])
            self._opens_call = _opening(template, _CALLS)
        self._text = ""
        self._read = 0  # the length of the text whose regions are known
        self._call: int | None = None  # where the mark of an open call begins

    def feed(self, text: str) -> list[MessagePart]:
        """Take more text."""
        if self._parser is None:
            return [MessagePart("content", text)] if text else []
        parts: list[MessagePart] = []
        for at, letter in enumerate(text):  # one by one: the same parts however the text is cut
            self._text += letter
            try:
                parts += self._parts(self._parser.feed(letter))
            except (ValueError, KeyError, TypeError, RuntimeError):
                return [*parts, *self._as_written(), *self.feed(text[at + 1 :])]
        return parts

    def end(self) -> list[MessagePart]:
        """Take the end of the answer."""
        if self._parser is None:
            return []
        try:
            return self._parts(self._parser.finalize()[1])
        except (ValueError, KeyError, TypeError, RuntimeError):
            return self._as_written()

    def _as_written(self) -> list[MessagePart]:
        """Return what was not handed out, with the mark of a call: a client sees that one was begun."""
        self._parser = None
        text = self._text[self._read if self._call is None else self._call :]
        return [MessagePart("content", text)] if text else []

    def _parts(self, events: Sequence[JsonObject]) -> list[MessagePart]:
        parts: list[MessagePart] = []
        for event in events:
            kind, name, text = event["type"], event.get("field"), str(event.get("text", ""))
            if kind == "region_open" and name == _CALLS:
                mark = self._opens_call.search(self._text, self._read)
                self._call = self._read if mark is None else mark.start()
            elif kind == "region_close" and name == _CALLS:
                self._call, value = None, event["value"]
                parts += [_call(one) for one in (value if isinstance(value, list) else [value])]
            elif kind == "region_chunk":
                self._read = self._text.find(text, self._read) + len(text)
                if not event.get("dirty") and name != _CALLS:
                    parts.append(MessagePart("reasoning" if name in _REASONING else "content", text))
        return [part for part in parts if part.text or part.kind == "call"]


def _opening(template: JsonObject, name: str) -> re.Pattern[str]:
    """Return the pattern of what opens a region of a response template; one that never matches without it."""
    field = as_object(as_object(template.get("fields")).get(name))
    if isinstance(pattern := field.get("open_pattern"), str):
        return re.compile(pattern, re.DOTALL)
    marks = field.get("open")
    listed = marks if isinstance(marks, list) else [marks] if marks else []
    return re.compile("|".join(re.escape(str(mark)) for mark in listed) or r"(?!)", re.DOTALL)


def _call(value: Json) -> MessagePart:
    function = as_object(as_object(value).get("function"))
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return MessagePart("call", arguments, str(function.get("name")))
