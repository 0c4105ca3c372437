"""Render a conversation with its chat template, and find which turn wrote which characters.

Templates are programs, and many write a turn differently once others follow (they drop the reasoning of
earlier turns). So prefixes of a conversation do not show where a turn is in the whole text. The template
itself does: Paceline puts a mark at the beginning of the body of every ``for`` loop over messages, and one
after the loop. It renders the whole conversation with the marks. The text between two marks belongs to that
turn. If the template processes its own output, it is also rendered without marks: both must agree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from paceline.core.json_types import Json, JsonObject
from paceline.core.security import resource_limits
from paceline.data.chat_template.jinja_sandbox import Span, blocks_of, environment, spans_in
from paceline.data.rows.values import RowError

if TYPE_CHECKING:
    from jinja2 import Environment, Template

MAX_CHARACTERS = 1 << 26  # maximum of one rendered conversation
# CPU time that a conversation is worth, once through a template
RENDERING_SECONDS = 1e-3
CHARACTER_SECONDS = 3e-6  # the slowest of 108 published templates takes 1.3e-6
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")

# Characters of a private plane of Unicode: begin of a turn, end of a turn, end of a mark.
_BEGIN, _END, _CLOSE = "\U000f5a01", "\U000f5a02", "\U000f5a03"
_MARK = re.compile(f"([{_BEGIN}{_END}])([0-9]+)(?:,([0-9]+))?{_CLOSE}")
_BEGIN_FILTER, _END_FILTER = "paceline_turn_begins", "paceline_turn_ends"


_TAKEN_UP = "it changes the text of a {% generation %} block after the block, so it cannot be found"


class TemplateInput(NamedTuple):
    """A template's input: messages in Transformers' form, and further arguments."""

    messages: Sequence[JsonObject]
    tools: Sequence[JsonObject] = ()
    documents: Sequence[JsonObject] = ()
    options: Mapping[str, Json] = {}


class Rendered(NamedTuple):
    """``text``; ``turns``: the spans that each turn wrote, None if unknown; ``marks``: spans of
    ``{% generation %}`` blocks.
    """

    text: str
    turns: list[list[Span]] | None
    marks: list[Span]


class ChatTemplate:
    """A compiled template. ``tokens``: special tokens by name, which the template may write.

    Raises Jinja's TemplateSyntaxError, or whatever else a template raises while it is compiled.
    """

    def __init__(self, text: str, tokens: Mapping[str, str]) -> None:
        self.text = text
        self._tokens = tokens
        self._environment = environment()
        self._marks = marks = _Marks()
        self._environment.filters |= {_BEGIN_FILTER: marks.begin, _END_FILTER: marks.end}
        self._plain: Template = self._environment.from_string(text)
        self._marked: Template = self._environment.from_string(_with_marks(self._environment, text))
        self.has_blocks = bool(GENERATION.search(text))

    def render(self, chat: TemplateInput, *, prompt: bool = False) -> str:
        """Return the text; ``prompt``: with the opening of the assistant's turn. Raises RowError."""
        return self._run(self._plain, chat, prompt)[0]

    def render_whole(self, chat: TemplateInput) -> Rendered:
        """Return the text with what each turn wrote. Raises RowError."""
        self._marks.of(chat.messages)
        try:
            marked, blocks = self._run(self._marked, chat, False)
        except RowError:
            text, blocks = self._run(self._plain, chat, False)
            return Rendered(text, None, blocks)
        # A mark that went straight to the output changes nothing else. One in a text that the template takes
        # up may: it counts only if the text is the same without.
        marks, text = list(_MARK.finditer(marked)), _MARK.sub("", marked)
        count = len(chat.messages)
        if self._marks.taken_up or marked.count(_CLOSE) != self._marks.written:
            # Rendered again, without marks: what counts is this text.
            plain, blocks = self._run(self._plain, chat, False)
            return Rendered(plain, _regions(marks, count) if plain == text else None, blocks)
        spans = [(_without_marks(marks, start), _without_marks(marks, end)) for start, end in blocks]
        return Rendered(text, _regions(marks, count), spans)

    def _run(self, template: Template, chat: TemplateInput, prompt: bool) -> tuple[str, list[Span]]:
        variables = {
            **self._tokens,
            **chat.options,
            "messages": chat.messages,
            "tools": list(chat.tools) or None,
            "documents": list(chat.documents) or None,
            "add_generation_prompt": prompt,
        }
        spans: list[Span] = []
        resource_limits.grant(worth(chat))
        try:
            if self.has_blocks and not prompt:
                pieces: list[str] = []
                with blocks_of(self._environment).recorded(pieces) as blocks:
                    for piece in template.generate(variables):
                        pieces.append(piece)
                text = "".join(pieces)
                spans = [span for span, _ in blocks]
                if any(text[slice(*span)] != block for span, block in blocks):
                    with blocks_of(self._environment).enclosed():
                        again, spans = spans_in(template.render(variables))
                    if again != text:
                        raise RowError("template_refused", _TAKEN_UP)
            else:
                text = template.render(variables)
        except (resource_limits.SpentError, MemoryError, RowError):
            raise
        except Exception as exc:  # noqa: BLE001  (a template may raise anything)
            raise RowError("template_refused", f"{type(exc).__name__}: {exc}"[:200]) from exc
        if len(text) > MAX_CHARACTERS:
            raise MemoryError
        return text, spans


def worth(chat: TemplateInput) -> float:
    """Return the CPU seconds that it may take to render a conversation."""
    values = (
        value
        for part in (chat.messages, chat.tools, chat.documents)
        for fields in part
        for value in fields.values()
    )
    characters = sum(len(value if isinstance(value, str) else str(value)) for value in values)
    return RENDERING_SECONDS + CHARACTER_SECONDS * characters


class _Marks:
    """The filters of the marked template. ``taken_up``: a mark is inside text that the template processes
    further (a macro's, a ``set`` block's); ``written``: number of marks.
    """

    def __init__(self) -> None:
        self.of([])

    def of(self, messages: Sequence[JsonObject]) -> None:
        """Mark the turns of a conversation from now on."""
        # By identity: two turns may be equal.
        self._numbers = {id(message): number for number, message in enumerate(messages)}
        self._begun: set[int] = set()
        self.taken_up = False
        self.written = 0

    def begin(self, item: object, loop: int, direct: bool) -> str:
        number = self._numbers.get(id(item))
        # A slice or a filter keeps the messages themselves, a template's own dict is none of them.
        if number is None:  # a turn of the template's own
            return self.end(None, loop)
        self._begun.add(loop)
        self.taken_up = self.taken_up or not direct
        self.written += 1
        return f"{_BEGIN}{loop},{number}{_CLOSE}"

    def end(self, item: object, loop: int) -> str:
        if loop not in self._begun:
            return ""
        self.written += 1
        return f"{_END}{loop}{_CLOSE}"


def _with_marks(environment: Environment, text: str) -> nodes.Template:
    """Return the template's syntax tree with marks in every loop over a single name that writes something."""

    class Marker(NodeTransformer):
        def __init__(self) -> None:
            self.loops = 0
            self.direct = True

        def visit_For(self, node: nodes.For) -> list[nodes.Node]:  # noqa: N802 (Jinja's name)
            number, self.loops = self.loops, self.loops + 1
            writes = any(node.find_all((nodes.Output, nodes.CallBlock, nodes.FilterBlock)))
            self.generic_visit(node)
            if not isinstance(node.target, nodes.Name) or not writes:
                return [node]
            item = nodes.Name(node.target.name, "load")
            node.body.insert(0, _marked(item, _BEGIN_FILTER, number, self.direct and not node.recursive))
            any_name = nodes.Name("messages", "load")  # a filter of a constant would be computed at once
            return [node, _marked(any_name, _END_FILTER, number)]

        def _taken_up(self, node: nodes.Node) -> nodes.Node:
            before, self.direct = self.direct, False
            self.generic_visit(node)
            self.direct = before
            return node

        visit_Macro = visit_AssignBlock = _taken_up  # noqa: N815 (Jinja's names)
        visit_FilterBlock = visit_Block = _taken_up  # noqa: N815

        def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802 (Jinja's name)
            if isinstance(node.call.node, nodes.ExtensionAttribute):  # generation: written as it is
                return self.generic_visit(node)
            return self._taken_up(node)

    tree = environment.parse(text)
    marked: nodes.Template = Marker().visit(tree)
    marked.set_lineno(1)
    marked.set_environment(environment)
    return marked


def _marked(value: nodes.Expr, name: str, *arguments: int | bool) -> nodes.Output:
    """Return the node that writes a filter's text. A filter is called directly, a function by the sandbox."""
    return nodes.Output(
        [nodes.Filter(value, name, [nodes.Const(item) for item in arguments], [], None, None)]
    )


def _without_marks(marks: Sequence[re.Match[str]], position: int) -> int:
    """Convert ``position`` to the text without marks."""
    return position - sum(mark.end() - mark.start() for mark in marks if mark.end() <= position)


def _regions(marks: Sequence[re.Match[str]], count: int) -> list[list[Span]]:
    """Return the spans of each turn in the text without marks: the innermost open turn owns a character."""
    regions: list[list[Span]] = [[] for _ in range(count)]
    open_turns: list[tuple[int, int]] = []  # (loop, turn), innermost last
    start = before = 0
    for mark in marks:
        end = start + mark.start() - before
        if open_turns and end > start:
            spans = regions[open_turns[-1][1]]
            # spans that touch are one
            begin = spans.pop()[0] if spans and spans[-1][1] == start else start
            spans.append((begin, end))
        start, before = end, mark.end()
        loop = int(mark.group(2))
        # The loop's former turn ends where its next one begins.
        open_turns = [pair for pair in open_turns if pair[0] != loop]
        if mark.group(1) == _BEGIN:
            open_turns.append((loop, int(mark.group(3))))
    return regions
