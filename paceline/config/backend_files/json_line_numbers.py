"""Positions in a JSON text: the line of every path, duplicate keys, and the first bracket nested too deep."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from dataclasses import dataclass, field

from paceline.config.yaml_text.tree import MAX_DEPTH
from paceline.core.json_types import Json

_TOKENS = re.compile(r'"(?:\\.|[^"\\])*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)


@dataclass
class _Open:
    """An open mapping or list: the path prefix of its members, and the current member."""

    prefix: str
    is_list: bool
    index: int = 0
    key: str | None = None
    seen: dict[str, int] = field(default_factory=dict)

    def path(self) -> str:
        return f"{self.prefix}{self.index if self.is_list else self.key}"


class Places:
    """Positions in a JSON text.

    ``lines``: by dotted path (``a.0.b``); ``duplicates``: (path, first line, second line); ``deep``: line of
    a bracket nested too deep, or 0.
    """

    def __init__(self, text: str) -> None:
        self.lines: dict[str, int] = {}
        self.duplicates: list[tuple[str, int, int]] = []
        self.deep = 0
        self._stack: list[_Open] = []
        ends = [match.start() for match in re.finditer("\n", text)]
        for match in _TOKENS.finditer(text):
            self._token(match[0], bisect_right(ends, match.start()) + 1)

    def _token(self, token: str, line: int) -> None:
        top = self._stack[-1] if self._stack else None
        if token in "{[":
            prefix = f"{self._member(top, line)}." if top else ""
            self._stack.append(_Open(prefix, token == "["))
            if len(self._stack) > MAX_DEPTH and not self.deep:
                self.deep = line
        elif token in "}]":
            del self._stack[-1:]
        elif top is None or token == ":":
            return
        elif token == ",":
            top.index += 1
            top.key = None
        elif not top.is_list and top.key is None:
            self._key(top, _text(token), line)
        else:
            self._member(top, line)

    def _key(self, top: _Open, key: str, line: int) -> None:
        top.key = key
        if key in top.seen:
            self.duplicates.append((top.path(), top.seen[key], line))
        top.seen.setdefault(key, line)
        self.lines[top.path()] = line

    def _member(self, top: _Open, line: int) -> str:
        """Return the path of the value that begins here; record its line unless its key's line is known."""
        path = top.path()
        self.lines.setdefault(path, line)
        return path


def line_of(text: str, word: str) -> int:
    """Return the line of the first unquoted token equal to ``word``; 1 if there is none."""
    found = next((match.start() for match in _TOKENS.finditer(text) if match[0] == word), 0)
    return text.count("\n", 0, found) + 1


def _text(token: str) -> str:
    try:
        read: Json = json.loads(token)
    except ValueError:  # a control character inside the quotes, which json.loads has refused already
        return token.strip('"')
    return str(read)
