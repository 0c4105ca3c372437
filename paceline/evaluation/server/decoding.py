"""The text of a growing answer: stop strings, reasoning and tool calls.

By vLLM's rules (v1/engine/detokenizer.py): tokens go through the tokenizer's own stream, which knows the
prompt. The first complete stop string ends the answer, and belongs to it only on request. Transformers'
response templates read reasoning and calls. A template comes from the tokenizer or from its family in
Transformers; without one an answer is only text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tokenizers.decoders import DecodeStream
from transformers.cli.serving.utils import get_response_template
from transformers.utils.chat_parsing import ResponseParser

from paceline.core.json_types import Json, JsonObject, as_object

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_BROKEN = "�"  # of bytes that are no character yet
_CONTEXT = 4  # tokens that one character may be cut into


class TextRules(NamedTuple):
    """``keep``: a stop string is part of the answer; ``least``: the number of tokens before any stop string
    ends the answer."""

    stops: tuple[str, ...] = ()
    keep: bool = False
    least: int = 0
    skip_special: bool = True


class Decoder:
    """One answer's ``text``. Its last characters are held back while they may begin a stop string."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, prompt: Sequence[int], rules: TextRules) -> None:
        self._tokenizer = tokenizer.backend_tokenizer
        self._stream = DecodeStream(ids=list(prompt), skip_special_tokens=rules.skip_special)
        self._rules = rules
        # One less than the longest: a whole one has ended the answer
        self._held = 0 if rules.keep else max((len(s) - 1 for s in rules.stops), default=0)
        self._given = 0
        self._count = 0
        self.text = ""

    def feed(self, token: int, is_end: bool) -> str | None:
        """Take the next token; ``is_end``: it ends the answer. Return the stop string that ends it, if
        any."""
        self._count += 1
        if not is_end or self._rules.keep:
            fresh = self._step(token)
            self.text += fresh
            if fresh and self._count > self._rules.least:
                return self._stopped(len(fresh))
        return None

    def delta(self, finished: bool) -> str:
        """Return the text that was not returned yet."""
        # The end of an answer releases what was held back.
        end = len(self.text) if finished else len(self.text) - self._held
        start, self._given = self._given, max(self._given, end)
        return self.text[start : self._given]

    def _step(self, token: int) -> str:
        try:
            return self._stream.step(self._tokenizer, token) or ""
        except Exception as error:  # its own class, of Rust
            if "Invalid prefix" not in str(error):  # after bytes that are no UTF-8
                raise
            self._stream = DecodeStream(skip_special_tokens=self._rules.skip_special)
            return self._stream.step(self._tokenizer, token) or ""

    def _stopped(self, fresh: int) -> str | None:
        ends: list[tuple[int, int, str]] = []
        for number, stop in enumerate(self._rules.stops):
            start = self.text.find(stop, max(0, len(self.text) - fresh - len(stop) + 1))
            if start >= 0:
                ends.append((start + len(stop), number, stop))
        if not ends:
            return None
        # The one that is complete first; of equal ends the first that the request names.
        end, _, stop = min(ends)
        self.text = self.text[: end if self._rules.keep else end - len(stop)]
        return stop


class TokenTexts:
    """The texts of single tokens, for log-probabilities; ``as_ids``: their numbers in place of texts.

    A character made of several tokens belongs to the last of them.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, as_ids: bool) -> None:
        self._tokenizer, self._as_ids = tokenizer, as_ids
        self._known: dict[int, str] = {}

    def of(self, token: int, before: Sequence[int]) -> str:
        """Return the text of ``token`` after the tokens ``before`` of its answer."""
        if self._as_ids:
            return f"token_id:{token}"
        text = self._alone(token)
        if not text.endswith(_BROKEN):
            return text
        # With as few tokens before it as complete the character.
        for length in range(1, min(len(before), _CONTEXT) + 1):
            context = list(before[-length:])
            completed = self._decode([*context, token])
            if not completed.endswith(_BROKEN):
                return completed[len(self._clean(context)) :]
        return ""

    def _clean(self, context: list[int]) -> str:
        """Return the text of the tokens that are no part of an unfinished character."""
        while context and self._alone(context[-1]).endswith(_BROKEN):
            context = context[:-1]
        return self._decode(context) if context else ""

    def _alone(self, token: int) -> str:
        if token not in self._known:
            self._known[token] = self._decode([token])
        return self._known[token]

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens))


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
    """Return the response template of the model's answers, if known; ``calls``: it must also read tool
    calls."""
    template: JsonObject | None = get_response_template(served.tokenizer, served.model)
    if template is None or calls:
        return template
    fields = template["fields"]
    assert isinstance(fields, dict)
    return {**template, "fields": {name: field for name, field in fields.items() if name != _CALLS}}


class Parser:
    """Parses one answer while it grows; text that it cannot parse stays content."""

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
        for index, letter in enumerate(text):  # one by one: the same parts however the text is cut
            self._text += letter
            try:
                parts += self._parts(self._parser.feed(letter))
            except (ValueError, KeyError, TypeError, RuntimeError):
                return [*parts, *self._as_written(), *self.feed(text[index + 1 :])]
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
        """Return the text that was not sent yet, with the mark of an unfinished call, so that a client sees
        it.
        """
        self._parser = None
        text = self._text[self._read if self._call is None else self._call :]
        return [MessagePart("content", text)] if text else []

    def _parts(self, events: Sequence[JsonObject]) -> list[MessagePart]:
        parts: list[MessagePart] = []
        for event in events:
            kind, name, text = event["type"], event.get("field"), str(event.get("text", ""))
            if kind == "region_open" and name == _CALLS:
                # Kept, as an unfinished call is sent as it was written, mark included.
                mark = self._opens_call.search(self._text, self._read)
                self._call = self._read if mark is None else mark.start()
            elif kind == "region_close" and name == _CALLS:
                self._call, value = None, event["value"]
                parts += [_call(call) for call in (value if isinstance(value, list) else [value])]
            elif kind == "region_chunk":
                # The parser says what it read, not where.
                self._read = self._text.find(text, self._read) + len(text)
                if not event.get("dirty") and name != _CALLS:
                    parts.append(MessagePart("reasoning" if name in _REASONING else "content", text))
        return [part for part in parts if part.text or part.kind == "call"]


def _opening(template: JsonObject, name: str) -> re.Pattern[str]:
    """Return the opening pattern of a response template's region, or a pattern that never matches."""
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
