"""Render conversations with one chat template, in the form that it expects."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from paceline.core.json_types import Json, JsonObject, as_object
from paceline.core.security import resource_limits
from paceline.data.chat_template.dropped_content import DroppedContentFinder
from paceline.data.chat_template.render import ChatTemplate, TemplateInput
from paceline.data.chat_template.template_texts import name_for, named_templates
from paceline.data.images.slots import SLOT, has_slot, parts_of, slot
from paceline.data.rows.formats import Example
from paceline.data.rows.messages import Message
from paceline.data.rows.values import RowError

T = TypeVar("T")
_TOOL, _KEY, _VALUE = "paceline_tool", "paceline_key", "paceline_value"


class Renderer:
    """A compiled template and its tested properties. Raises RowError for one that cannot be compiled.

    ``form``: the form of calls and contents that it expects; ``left_out``: finds the fields that it does not
    write.
    """

    def __init__(self, text: str, tokens: Mapping[str, str], images: ImageTexts | None = None) -> None:
        try:
            self.template = ChatTemplate(text, tokens)
        except (resource_limits.SpentError, MemoryError):
            raise
        except Exception as exc:  # noqa: BLE001  (a template may raise anything)
            raise RowError("template_refused", f"{type(exc).__name__}: {exc}"[:200]) from exc
        self.form: ChatForm = form_of(self.template)
        if images is not None:
            self.form = _with_images(self.form, self.template, images)
        self.left_out = DroppedContentFinder(self.template, self.text)

    def render(self, example: Example, render: Callable[[TemplateInput], T]) -> tuple[TemplateInput, T]:
        """Render a conversation; ids of calls are made up for a template that needs them. Raises RowError."""
        chat = self.form.chat(example)
        try:
            return chat, render(chat)
        except RowError:
            if not any(message.get("tool_calls") for message in example.messages):
                raise
            chat = self.form.chat(example, ids=True)
            return chat, render(chat)

    def text(self, example: Example) -> str:
        """Return the text of a conversation. Raises RowError."""
        return self.render(example, self.template.render)[1]


class Renderers:
    """The renderers of a tokenizer's chat templates, each compiled when a conversation first needs it.

    ``templates``: the tokenizer's ``chat_template``, one text or several by name; rows with tools take the
    one named ``tool_use``. ``images``: how pictures are written; None where there are none.
    """

    def __init__(self, templates: Json, tokens: Mapping[str, str], images: ImageTexts | None = None) -> None:
        self.templates = named_templates(templates)
        self._tokens, self._images = tokens, images
        self._renderers: dict[str, Renderer] = {}

    def of(self, example: Example) -> Renderer:
        """Return the renderer of a conversation. Raises RowError."""
        name = name_for(self.templates, tools=bool(example.tools))
        if name is None:
            names = ", ".join(sorted(self.templates))
            raise RowError("template_refused", f"the tokenizer's templates ({names}) have no default")
        if name not in self._renderers:
            self._renderers[name] = Renderer(self.templates[name], self._tokens, self._images)
        return self._renderers[name]


class ImageTexts(Protocol):
    """What stands for a picture in rendered texts: the ``mark`` that templates write, and the text
    ``written`` for a template that takes no pictures.
    """

    mark: str
    written: str


@dataclass(frozen=True)
class ChatForm:
    """``as_object``: arguments of calls are objects; ``no_content``: a turn of calls alone has content None;
    ``developer``: the template has this role (otherwise such turns become system turns); ``parts``: contents
    are lists of parts. ``written``: the text of a picture, None: a part of the content.
    """

    as_object: bool = True
    no_content: bool = False
    developer: bool = True
    parts: bool = False
    written: str | None = None

    def chat(self, example: Example, *, ids: bool = False) -> TemplateInput:
        """Return the conversation for the template; ``ids``: calls and results without an id get one."""
        messages = [self._message(message) for message in example.messages]
        if ids:
            _number(messages)
        return TemplateInput(messages, example.tools, example.documents, example.template_kwargs)

    def _message(self, message: Message) -> JsonObject:
        renamed = message["role"] == "developer" and not self.developer
        content: Json = message["content"]
        if self.written is not None:
            content = SLOT.sub(lambda _: str(self.written), message["content"])
        if self.parts or has_slot(str(content)):
            content = [*parts_of(str(content))]
        turn: JsonObject = {"role": "system" if renamed else message["role"], "content": content}
        # gpt-oss reads reasoning as "thinking"; Transformers gives both names, and so do we
        if "reasoning_content" in message:
            turn |= dict.fromkeys(("reasoning_content", "thinking"), message["reasoning_content"])
        if message.get("tool_calls"):
            turn["tool_calls"] = [self._call(call) for call in message["tool_calls"]]
            if self.no_content and not message["content"].strip():
                turn["content"] = None
        given: Mapping[str, Json] = {**message}  # type: ignore[dict-item]
        return turn | {name: given[name] for name in ("name", "tool_call_id", "input") if name in given}

    def _call(self, call: JsonObject) -> JsonObject:
        function = as_object(call["function"])
        arguments = function["arguments"]
        if self.as_object and isinstance(arguments, str):
            arguments = _object(arguments)
        elif not self.as_object and not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        return {**call, "function": {**function, "arguments": arguments}}


def _object(text: str) -> Json:
    """Return the JSON object in a text; the text itself if it is not one (a model may write an invalid
    call)."""
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _number(messages: Sequence[JsonObject]) -> None:
    """Give each call that lacks an id a nine-digit one, and each result the id of its call, in order."""
    numbers = itertools.count(1)
    waiting: list[Json] = []
    for message in messages:
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            # Nine digits, as Mistral's templates demand
            waiting = [c.setdefault("id", f"{next(numbers):09d}") for c in calls if isinstance(c, dict)]
        elif message["role"] == "tool" and waiting:
            message.setdefault("tool_call_id", waiting.pop(0))


def _wants_parts(template: ChatTemplate) -> bool:
    """Whether the template writes text only from lists of parts, as multimodal templates may."""
    if "text" not in template.text:
        return False
    question = Example(messages=({"role": "user", "content": _VALUE},))
    for parts in (False, True):
        try:
            if _VALUE in template.render(ChatForm(parts=parts).chat(question), prompt=True):
                return parts
        except RowError:
            continue
    return False


def _with_images(form: ChatForm, template: ChatTemplate, images: ImageTexts) -> ChatForm:
    """Return the form in which the template writes a mark for each picture; else with marks as text."""
    question = Example(messages=({"role": "user", "content": f"{slot(0)}{_VALUE}"},))
    try:
        text = template.render(form.chat(question), prompt=True)
    except RowError:
        text = ""
    if _VALUE in text and text.count(images.mark) == 1:
        return form
    return replace(form, written=images.written)


def form_of(template: ChatTemplate) -> ChatForm:
    """Return the form of calls that the template renders correctly; the first form if none is."""
    plain = ChatForm(developer="developer" in template.text, parts=_wants_parts(template))
    if "tool" not in template.text:
        return plain
    call: JsonObject = {"name": _TOOL, "arguments": {_KEY: _VALUE}}
    messages: tuple[Message, ...] = (
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "id": "000000001", "function": call}],
        },
        {"role": "tool", "content": "b", "name": _TOOL, "tool_call_id": "000000001"},
        {"role": "assistant", "content": "c"},
    )
    schema: JsonObject = {
        "name": "other",
        "description": "d",
        "parameters": {"type": "object", "properties": {}},
    }
    probe = Example(messages=messages, tools=({"type": "function", "function": schema},))
    for no_content, objects in itertools.product((False, True), (True, False)):
        form = replace(plain, as_object=objects, no_content=no_content)
        try:
            text = template.render(form.chat(probe))
        except RowError:
            continue
        written = _TOOL in text and _KEY in text and _VALUE in text
        if written and f"'{_KEY}'" not in text and f'\\"{_KEY}\\"' not in text:
            return form
    return plain
