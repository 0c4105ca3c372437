"""Render a conversation with its chat template, and find which turn wrote which characters.

Templates are programs, and many write a turn differently once others follow (reasoning of earlier turns is
dropped), so prefixes of a conversation do not tell where a turn stands in the whole. The template itself
does: every ``for`` loop over messages in its syntax tree gets a mark at the beginning and the end of its
body, and the whole conversation is rendered once with the marks and once without. If both agree, what lies
between two marks is what that turn wrote.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from paceline.core import bounded
from paceline.core.json_types import Json, JsonObject
from paceline.data.cells import RowError

if TYPE_CHECKING:
    from jinja2 import Environment, Template, nodes

MAX_CHARACTERS = 1 << 26  # maximum of one rendered conversation
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")

# Characters of a private plane of Unicode: begin of a turn, end of a turn, end of a mark.
_BEGIN, _END, _CLOSE = "\U000f5a01", "\U000f5a02", "\U000f5a03"
_MARK = re.compile(f"([{_BEGIN}{_END}])([0-9]+)(?:,([0-9]+))?{_CLOSE}")
_BEGIN_CALL, _END_CALL = "paceline_turn_begins", "paceline_turn_ends"

Span = tuple[int, int]


class Chat(NamedTuple):
    """What a template renders: messages in the form that Transformers gives them, and what is beside them."""

    messages: Sequence[JsonObject]
    tools: Sequence[JsonObject] = ()
    documents: Sequence[JsonObject] = ()
    options: Mapping[str, Json] = {}


class Rendered(NamedTuple):
    """``text``; ``turns``: the spans that each turn wrote, None if they cannot be told; ``marks``: spans of
    ``{% generation %}`` blocks.
    """

    text: str
    turns: list[list[Span]] | None
    marks: list[Span]


class ChatTemplate:
    """A compiled template. ``tokens``: special tokens by name, which the template may write."""

    def __init__(self, text: str, tokens: Mapping[str, str]) -> None:
        from transformers.utils import chat_template_utils

        compile_template = chat_template_utils._compile_jinja_template  # Transformers' sandbox
        self.text = text
        self._tokens = tokens
        self._plain: Template = compile_template(text)
        environment = self._plain.environment
        self._marked: Template = environment.from_string(_with_marks(environment, text))
        self.has_blocks = bool(GENERATION.search(text))

    def render(self, chat: Chat, *, prompt: bool = False) -> str:
        """Return the text; ``prompt``: with the opening of the assistant's turn. Raises RowError."""
        return self._run(self._plain, chat, {}, prompt)[0]

    def render_whole(self, chat: Chat) -> Rendered:
        """Return the text with what each turn wrote. Raises RowError."""
        text, blocks = self._run(self._plain, chat, {}, False)
        numbers = {id(message): number for number, message in enumerate(chat.messages)}

        begun: set[int] = set()

        def begin(loop: int, item: object) -> str:
            number = numbers.get(id(item)) if isinstance(item, dict) else None
            if number is None:
                return ""
            begun.add(loop)
            return f"{_BEGIN}{loop},{number}{_CLOSE}"

        def end(loop: int) -> str:
            return f"{_END}{loop}{_CLOSE}" if loop in begun else ""

        try:
            marked, _ = self._run(self._marked, chat, {_BEGIN_CALL: begin, _END_CALL: end}, False)
        except RowError:
            return Rendered(text, None, blocks)
        if _MARK.sub("", marked) != text:
            return Rendered(text, None, blocks)
        return Rendered(text, _regions(marked, len(chat.messages)), blocks)

    def _run(
        self, template: Template, chat: Chat, calls: Mapping[str, object], prompt: bool
    ) -> tuple[str, list[Span]]:
        given = {
            **self._tokens,
            **chat.options,
            **calls,
            "messages": chat.messages,
            "tools": list(chat.tools) or None,
            "documents": list(chat.documents) or None,
            "add_generation_prompt": prompt,
        }
        blocks: list[str] = []
        marks: list[Span] = []
        try:
            if self.has_blocks and not prompt:
                with template.environment.activate_tracker(blocks, marks):  # type: ignore[attr-defined]
                    for block in template.generate(given):
                        blocks.append(block)
            else:
                blocks.append(template.render(given))
        except (bounded.SpentError, MemoryError):
            raise
        except Exception as exc:  # noqa: BLE001  (a template may raise anything)
            raise RowError("template_refused", f"{type(exc).__name__}: {exc}"[:200]) from exc
        text = "".join(blocks)
        if len(text) > MAX_CHARACTERS:
            raise MemoryError
        return text, [(int(a), int(b)) for a, b in marks]


def _with_marks(environment: Environment, text: str) -> nodes.Template:
    """Return the template's syntax tree with marks in every loop over a single name."""
    from jinja2 import nodes
    from jinja2.visitor import NodeTransformer

    class Marker(NodeTransformer):
        def __init__(self) -> None:
            self.loops = 0

        def visit_For(self, node: nodes.For) -> list[nodes.Node]:  # noqa: N802 (Jinja's name)
            number, self.loops = self.loops, self.loops + 1
            self.generic_visit(node)
            if not isinstance(node.target, nodes.Name):
                return [node]
            item = nodes.Name(node.target.name, "load")
            node.body = [_call(_BEGIN_CALL, number, item), *node.body, _call(_END_CALL, number)]
            return [node, _call(_END_CALL, number)]  # a loop may be left by `continue` or `break`

    def _call(name: str, number: int, *more: nodes.Expr) -> nodes.Output:
        called = nodes.Name(name, "load")
        return nodes.Output([nodes.Call(called, [nodes.Const(number), *more], [], None, None)])

    tree = environment.parse(text)
    marked: nodes.Template = Marker().visit(tree)
    marked.set_lineno(1)
    marked.set_environment(environment)
    return marked


def _regions(marked: str, count: int) -> list[list[Span]]:
    """Return the spans of each turn in the text without marks: the innermost open turn owns a character."""
    regions: list[list[Span]] = [[] for _ in range(count)]
    open_turns: list[tuple[int, int]] = []  # (loop, turn), innermost last
    at = before = 0
    for mark in _MARK.finditer(marked):
        length = mark.start() - before
        if open_turns and length:
            regions[open_turns[-1][1]].append((at, at + length))
        at, before = at + length, mark.end()
        loop = int(mark.group(2))
        open_turns = [pair for pair in open_turns if pair[0] != loop]
        if mark.group(1) == _BEGIN:
            open_turns.append((loop, int(mark.group(3))))
    return [_joined(spans) for spans in regions]


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Join spans that touch."""
    joined: list[Span] = []
    for start, end in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined
