"""What an answer says beside its text: reasoning and calls, read by Transformers' response templates.

A tokenizer brings one, or its family has one in Transformers; without one an answer is text alone.
"""

from __future__ import annotations

import json
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
        self._unread = ""

    def feed(self, text: str) -> list[MessagePart]:
        """Take more text."""
        if self._parser is None:
            return [MessagePart("content", text)] if text else []
        self._unread += text
        try:
            events = self._parser.feed(text)
        except (ValueError, KeyError, TypeError, RuntimeError):
            return self._as_written()
        return self._parts(events)

    def end(self) -> list[MessagePart]:
        """Take the end of the answer."""
        if self._parser is None:
            return []
        try:
            return self._parts(self._parser.finalize()[1])
        except (ValueError, KeyError, TypeError, RuntimeError):
            return self._as_written()

    def _as_written(self) -> list[MessagePart]:
        text, self._parser, self._unread = self._unread, None, ""
        return [MessagePart("content", text)] if text else []

    def _parts(self, events: Sequence[JsonObject]) -> list[MessagePart]:
        parts: list[MessagePart] = []
        for event in events:
            kind, name, text = event["type"], event.get("field"), str(event.get("text", ""))
            if kind == "region_close" and name == _CALLS:
                value = event["value"]
                parts += [_call(one) for one in (value if isinstance(value, list) else [value])]
            elif kind == "region_chunk" and not event.get("dirty") and name != _CALLS:
                parts.append(MessagePart("reasoning" if name in _REASONING else "content", text))
            if kind != "region_chunk" or not event.get("dirty"):
                self._unread = ""
            elif not self._unread.endswith(text):
                self._unread += text
        return [part for part in parts if part.text or part.kind == "call"]


def _call(value: Json) -> MessagePart:
    function = as_object(as_object(value).get("function"))
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return MessagePart("call", arguments, str(function.get("name")))
