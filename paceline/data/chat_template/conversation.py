"""Conversations through one chat template, in the form that it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from paceline.core.json_types import Json
from paceline.core.security import resource_limits
from paceline.data.chat_template.dropped_content import LeftOut
from paceline.data.chat_template.jinja_syntax import name_for, named_templates
from paceline.data.chat_template.message_form import ChatForm, form_of
from paceline.data.chat_template.render import Chat, ChatTemplate
from paceline.data.rows.formats import Example
from paceline.data.rows.values import RowError

T = TypeVar("T")


class Renderer:
    """A compiled template, and what was found out about it. Raises RowError for one that cannot be compiled.

    ``form``: how it reads calls and contents; ``left_out``: what it does not write.
    """

    def __init__(self, text: str, tokens: Mapping[str, str]) -> None:
        try:
            self.template = ChatTemplate(text, tokens)
        except (resource_limits.SpentError, MemoryError):
            raise
        except Exception as exc:  # noqa: BLE001  (a template may raise anything)
            raise RowError("template_refused", f"{type(exc).__name__}: {exc}"[:200]) from exc
        self.form: ChatForm = form_of(self.template)
        self.left_out = LeftOut(self.template, self.text)

    def render(self, example: Example, render: Callable[[Chat], T]) -> tuple[Chat, T]:
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
    one named ``tool_use``.
    """

    def __init__(self, templates: Json, tokens: Mapping[str, str]) -> None:
        self.templates = named_templates(templates)
        self._tokens = tokens
        self._made: dict[str, Renderer] = {}

    def of(self, example: Example) -> Renderer:
        """Return the renderer of a conversation. Raises RowError."""
        name = name_for(self.templates, tools=bool(example.tools))
        if name is None:
            named = ", ".join(sorted(self.templates))
            raise RowError("template_refused", f"the tokenizer's templates ({named}) have no default")
        return self.named(name)

    def named(self, name: str) -> Renderer:
        """Return the renderer of one template. Raises RowError."""
        if name not in self._made:
            self._made[name] = Renderer(self.templates[name], self._tokens)
        return self._made[name]
