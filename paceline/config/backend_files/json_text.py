"""Parse JSON as DeepSpeed does with Hjson: comments and trailing commas are allowed.

Line numbers are those of the file. Hjson's unquoted words are refused. Such a word swallows the rest of its
line, including the comma. A template's placeholders would become wrong values instead of errors.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from dataclasses import dataclass, field

from paceline.config import codes
from paceline.config.yaml_text.lookalike_characters import near_line, plain
from paceline.config.yaml_text.tree import MAX_DEPTH
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json

_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|#[^\n]*|/\*.*?\*/|,(?=\s*[}\]])', re.DOTALL)
_BARE = re.compile(r":\s*([A-Za-z_][A-Za-z0-9_]*)")
# Each may uncover what the next removes: a comma behind a comment, a comment behind a comma
_PASSES = 3
_MOST_DIGITS = 40  # as in YAML: longer numbers are refused


def parse_json(text: str, name: str, kind: str, *, lenient: bool = False) -> tuple[Json, bool]:
    """Return (data, whether comments or extra commas were removed).

    Raises ConfigError with ``file:line``, also for duplicate keys and NaN.
    """
    try:
        return _strict(text, name, kind), False
    except ConfigError as first:
        plain = without_comments(text) if lenient else text
        if plain == text:
            raise
        try:
            return _strict(plain, name, kind), True
        except ConfigError as second:
            raise second from first


def without_comments(text: str) -> str:
    """Remove ``//``, ``#`` and ``/* */`` comments and trailing commas, keeping the number of lines."""
    for _ in range(_PASSES):  # a comment may stand between a comma and its bracket
        text = _TOKEN.sub(lambda token: token[0] if token[0][0] == '"' else "\n" * token[0].count("\n"), text)
    return text


def json_lines(text: str) -> dict[str, int]:
    """Return the line of every inner path of a text that ``parse_json`` accepts."""
    return Places(without_comments(text)).lines


def _strict(text: str, name: str, file_kind: str) -> Json:
    def number(kind: type[int] | type[float], word: str) -> Json:
        if len(word) > _MOST_DIGITS or not math.isfinite(float(word)):
            raise _misfit(
                text, name, file_kind, word, f"a number of {len(word)} digits" if len(word) > 9 else word
            )
        return kind(word)

    def constant(word: str) -> Json:
        raise _misfit(text, name, file_kind, word, f"{word}, which is not valid JSON")

    try:
        data = json.loads(
            text,
            parse_constant=constant,
            parse_int=lambda word: number(int, word),
            parse_float=lambda word: number(float, word),
        )
    except json.JSONDecodeError as exc:
        raise _syntax(exc, text, name, file_kind) from exc
    except RecursionError as exc:
        raise _too_deep(Places(text).deep, name, file_kind) from exc
    places = Places(text)
    if places.deep:
        raise _too_deep(places.deep, name, file_kind)
    if places.duplicates:
        raise ConfigError(
            *(
                codes.CONFIG_DUPLICATE_KEY(
                    f"the {file_kind} gives '{key}' twice, first in line {first}",
                    f"{name}:{second}",
                    f"line {first} and line {second}",
                    "keep one of the two lines",
                )
                for key, first, second in places.duplicates
            )
        )
    return data


def _syntax(exc: json.JSONDecodeError, text: str, name: str, kind: str) -> ConfigError:
    """Return json's message, with the last non-empty line as its place if the text ends too early."""
    lines = text[: exc.pos].rstrip().split("\n") if exc.pos >= len(text.rstrip()) else text.split("\n")
    number = min(exc.lineno, len(lines))
    line = lines[number - 1]
    bare = _BARE.search(line)
    if bare and bare[1] not in ("true", "false", "null"):
        return ConfigError(
            codes.CONFIG_JSON_TEMPLATE(
                f"the {kind} has an unquoted word where a value is expected: a placeholder of a"
                " template that was not filled in",
                f"{name}:{number}",
                bare[1],
                "write the value itself, or put the word in quotes",
            )
        )
    remedy = "use JSON, with keys and words in double quotes"
    if exc.pos >= len(text.rstrip()):
        remedy = "the text ends too early: a closing bracket or quote is missing" if text.strip() else "{ … }"
    excerpt = repr(line.strip()[:80])
    if slip := near_line(lines, number):
        line = lines[slip[0] - 1].strip()
        kind = f"{slip[1]} is used where a plain character is expected"
        return ConfigError(
            codes.CONFIG_LOOKALIKE(kind, f"{name}:{slip[0]}", repr(line[:80]), plain(line)[:80])
        )
    return ConfigError(
        codes.CONFIG_JSON_SYNTAX(
            f"the {kind} is not valid JSON: {exc.msg}", f"{name}:{number}", excerpt, remedy
        )
    )


def _misfit(text: str, name: str, kind: str, word: str, says: str) -> ConfigError:
    value = word if len(word) <= _MOST_DIGITS else f"{word[:_MOST_DIGITS]}…"
    return ConfigError(
        codes.CONFIG_JSON_SYNTAX(
            f"the {kind} contains {says}", f"{name}:{line_of(text, word)}", value, "a number"
        )
    )


def _too_deep(line: int, name: str, kind: str) -> ConfigError:
    return ConfigError(
        codes.CONFIG_YAML_DEPTH(
            f"the {kind} is nested more than {MAX_DEPTH} levels deep",
            f"{name}:{line}",
            "",
            "settings need about five levels",
        )
    )


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
    start = next((match.start() for match in _TOKENS.finditer(text) if match[0] == word), 0)
    return text.count("\n", 0, start) + 1


def _text(token: str) -> str:
    try:
        read: Json = json.loads(token)
    except ValueError:  # a control character inside the quotes, which json.loads has refused already
        return token.strip('"')
    return str(read)
