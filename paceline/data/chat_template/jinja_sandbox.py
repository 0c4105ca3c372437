"""The sandbox in which chat templates are compiled: Transformers' own rules, without an import of torch.

A template is untrusted code. It gets Jinja's immutable sandbox, ``raise_exception``, ``strftime_now`` (always
of one day) and a ``tojson`` that does not escape HTML. ``{% generation %}`` blocks enclose the model's text.
These are as in Transformers 5.23 (``utils/chat_template_utils.py``); a test holds both to the same texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

Span = tuple[int, int]
# Characters of a private plane of Unicode: a block's begin and end in a text that the template takes up.
_OPEN, _SHUT = "\U000f5a04", "\U000f5a05"
#: What ``strftime_now`` says on every day: the tokens of a row, and so a resume and a cache, must not depend
#: on the day on which they were prepared.
DAY = datetime(2026, 1, 1)


class GenerationBlocks(Extension):
    """``{% generation %}``: records the spans of these blocks while it is active."""

    tags = {"generation"}  # noqa: RUF012 (as Jinja declares it)

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self._pieces: list[str] | None = None
        self._spans: list[tuple[Span, str]] = []
        self._enclosing = False

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_block"), [], [], body).set_lineno(line)

    def _block(self, caller: Callable[[], str]) -> str:
        text = caller()
        if self._enclosing:
            return f"{_OPEN}{text}{_SHUT}"
        if self._pieces is not None:
            # What has been yielded so far stands before the block.
            start = sum(map(len, self._pieces))
            self._spans.append(((start, start + len(text)), text))
        return text

    @contextmanager
    def recorded(self, pieces: list[str]) -> Iterator[list[tuple[Span, str]]]:
        """Record spans in the text of ``pieces``, to which the caller appends what the template yields.

        A block in a text that the template takes up (a macro's, a ``set`` block's) has another place in the
        end: its recorded text does not stand there.
        """
        self._pieces, self._spans = pieces, []
        try:
            yield self._spans
        finally:
            self._pieces = None

    @contextmanager
    def enclosed(self) -> Iterator[None]:
        """Write a mark at the begin and the end of each block; ``spans_in`` finds them."""
        self._enclosing = True
        try:
            yield
        finally:
            self._enclosing = False


def spans_in(marked: str) -> tuple[str, list[Span]]:
    """Return a text without the marks of ``GenerationBlocks.enclosed``, and the blocks' spans in it."""
    pieces, spans, length, opened = list[str](), list[Span](), 0, list[int]()
    for piece in re.split(f"([{_OPEN}{_SHUT}])", marked):
        if piece == _OPEN:
            opened.append(length)
        elif piece == _SHUT and opened:
            spans.append((opened.pop(), length))
        else:
            pieces.append(piece)
            length += len(piece)
    return "".join(pieces), sorted(spans)


class _Dict:
    """``dict`` without its attributes, by which a template could leave the sandbox."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class _Namespace(Namespace):
    """Jinja's namespace without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # noqa: N805 (`self` may be an attribute)
        namespace, *arguments = args
        attributes = dict(*arguments, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(namespace, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot have the attribute {name!r}")


def _raise(message: str) -> NoReturn:
    raise jinja2.exceptions.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _now(form: str) -> str:
    return DAY.strftime(form)


def environment() -> jinja2.Environment:
    """Return a new environment; one serves one template at a time."""
    sandbox = ImmutableSandboxedEnvironment(
        # As Transformers compiles templates: other blanks would be other tokens
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[GenerationBlocks, loopcontrols],
    )
    sandbox.filters["tojson"] = _to_json
    sandbox.globals["raise_exception"] = _raise
    sandbox.globals["strftime_now"] = _now
    sandbox.globals["dict"] = _Dict()
    sandbox.globals["namespace"] = _Namespace
    return sandbox


def blocks_of(sandbox: jinja2.Environment) -> GenerationBlocks:
    """Return the recorder of an environment's ``{% generation %}`` blocks."""
    recorder = sandbox.extensions[GenerationBlocks.identifier]
    assert isinstance(recorder, GenerationBlocks)
    return recorder
