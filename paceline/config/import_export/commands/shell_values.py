"""The values of a shell's words: variables, arrays, whole numbers and ``expr``, as bash computes them."""

from __future__ import annotations

import ast
import glob
import operator
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.config.import_export.commands.open_values import NotKnown, OpenValues, only_open
from paceline.config.import_export.commands.shell_words import Lexer, ShellWord, WordPart

_FORM = re.compile(r"(#?)(\w+|[@*#?$!-])(?:\[([^\]]+)\])?(?:(:?[-=+])(.*))?", re.S)
_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")
_NAMED = re.compile(r"[A-Za-z_]\w*=")
_HIDDEN = "\x01"  # a quoted character, where patterns are looked for
_EXPR = re.compile(r"expr (-?\d+) ([-+*/%]) (-?\d+)")
_MOST = 2**63
_LONGEST = 128 * 1024  # Linux's limit on one argument


@dataclass
class _Field:
    """A word while it is built, and the same word with its quoted parts hidden from patterns."""

    text: str = ""
    globs: str = ""
    braces: str = ""

    def add(self, text: str, globs: bool, braces: bool) -> None:
        self.text += text
        self.globs += text if globs else _HIDDEN * len(text)
        self.braces += text if braces else _HIDDEN * len(text)


@dataclass
class Values:
    """Variables, arrays and the script's arguments; uncertain ones have their reason.

    ``lines``: where the script sets each variable; ``open``: values known only at run time.
    """

    known: dict[str, str | list[str]] = field(default_factory=dict)
    doubts: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    exported: set[str] = field(default_factory=set)
    lines: dict[str, int] = field(default_factory=dict)
    splits: bool = True
    open: OpenValues = field(default_factory=OpenValues)

    def set(self, name: str, value: str | list[str]) -> None:
        """Give a variable its value. Raises NotKnown for one longer than any argument."""
        if len(value) > _LONGEST or sum(map(len, value)) > _LONGEST:
            raise NotKnown("it is longer than any argument")
        self.known[name] = value
        self.doubts.pop(name, None)

    def unset(self, name: str) -> None:
        """Remove a variable."""
        self.known.pop(name, None)
        self.doubts.pop(name, None)

    def doubt(self, name: str, why: str) -> None:
        """Mark a variable's value as uncertain."""
        self.known.pop(name, None)
        self.doubts[name] = why

    def fields(self, word: ShellWord, patterns: bool = True) -> list[str]:
        """Return what a word becomes: no, one or several arguments. Raises NotKnown.

        ``patterns``: accept words that bash replaces by file names or by several words.
        """
        fields: list[_Field] = []
        current: _Field | None = None
        segments = self._segments(_home(word.parts), False)
        if ("", "nothing") in segments and not any(text for text, _ in segments):
            return []  # "$@" without arguments
        for text, mode in segments:
            if mode == "split" and self.splits:
                for number, piece in enumerate(re.split(r"[ \t\n]+", text)):
                    if number and current is not None:
                        fields.append(current)
                        current = None
                    if piece:
                        current = current or _Field()
                        current.add(piece, True, False)
            elif mode == "break":
                fields += [current] if current is not None else []
                current = None
            elif mode == "split" and text and not self.splits:
                raise NotKnown("IFS is set, which decides how this value is cut into words")
            elif mode not in ("split", "nothing"):
                current = current or _Field()
                current.add(text, mode == "plain", mode == "plain")
        fields += [current] if current is not None else []
        for field_text in fields if patterns else ():
            _check(field_text)
        return [field_text.text for field_text in fields]

    def text(self, parts: tuple[WordPart, ...]) -> str:
        """Return a text without word splitting: an assignment's or a here-document's."""
        return "".join(" " if mode == "break" else text for text, mode in self._segments(_home(parts), True))

    def _segments(self, parts: tuple[WordPart, ...], as_one: bool) -> list[tuple[str, str]]:
        """Return pieces of text, each quoted, plain or to be split, and breaks between elements."""
        segments: list[tuple[str, str]] = []
        length = 0
        for part in parts:
            quoted = part.quoted or as_one
            length += len(segments[-1][0]) if segments else 0
            if max(length, len(segments)) > _LONGEST:
                raise NotKnown("it is longer than any argument")
            if part.kind in ("text", "escaped"):
                segments.append((part.text, "quoted" if part.quoted else "plain"))
            elif part.kind in ("number", "command", "variable"):
                try:
                    segments += self._expanded(part, quoted)
                except NotKnown as problem:
                    segments.append((self.open.mark(problem, f"${part.text}"), "quoted"))
            else:
                raise NotKnown(f"{part.text}… is a form that is not read")
        return segments

    def _expanded(self, part: WordPart, quoted: bool) -> list[tuple[str, str]]:
        if part.kind == "variable":
            return self._variable(part.text, quoted)
        text = str(self.number(part.text)) if part.kind == "number" else self._printed(part.text)
        return [(text, "quoted" if quoted else "split")]

    def _variable(self, form: str, quoted: bool) -> list[tuple[str, str]]:
        match = _FORM.fullmatch(form)
        if match is None or (match[1] and match[4]):
            raise NotKnown(f"${{{form}}} is a form that is not computed")
        length, name, index, rule, word = match.groups()
        value = self._value(name, index)
        if name in self.doubts:
            raise NotKnown(self.doubts[name], f"write the value there, or in place of {name}")
        # How long an open value is, and whether it is empty, only a run tells
        if value is not None and (length or (rule == ":+" and only_open("".join(value)))):
            self.open.refuse(value)
        empty = value is None or (value in ("", []) and (rule or "").startswith(":"))
        if rule and (empty is not rule.endswith("+")):
            if rule.endswith("+"):
                return self._given(word, quoted)
            if rule.endswith("="):
                self.set(name, self.text(Lexer(word).within(quoted)))
            return self._given(word, quoted)
        if rule and rule.endswith("+"):
            return []
        if value is None:
            raise NotKnown(
                f"the variable {name} has no value in the script",
                f"write {name}=… above the command, or its value in place of it",
            )
        if length:
            return [(str(len(value)), "quoted" if quoted else "split")]
        mode = "quoted" if quoted else "split"
        if isinstance(value, str):
            return [(value, mode)]
        if quoted and (index == "*" or name == "*"):
            if not self.splits:
                raise NotKnown("IFS is set, which decides how these values are joined")
            return [(" ".join(value), mode)]
        pieces: list[tuple[str, str]] = [] if value else [("", "nothing")]
        for number, element in enumerate(value):
            pieces += ([("", "break")] if number else []) + [(element, mode)]
        return pieces

    def _given(self, word: str, quoted: bool) -> list[tuple[str, str]]:
        segments = self._segments(Lexer(word).within(quoted), quoted)
        return [(text, "split" if mode == "plain" and not quoted else mode) for text, mode in segments]

    def _value(self, name: str, index: str | None) -> str | list[str] | None:
        if name in ("@", "*"):
            return self.arguments
        if name == "#":
            return str(len(self.arguments))
        if name.isdecimal() and name != "0":
            return self.arguments[int(name) - 1] if int(name) <= len(self.arguments) else None
        value = self.known.get(name)
        if value is None and name == "HOME" and name not in self.doubts:
            return os.path.expanduser("~")
        if index is None:
            return value[0] if isinstance(value, list) and value else "" if isinstance(value, list) else value
        listed = value if isinstance(value, list) else [] if value is None else [value]
        if value is None or index in ("@", "*"):
            return None if value is None else listed
        self.open.refuse(listed)
        number = self.number(index)
        return listed[number] if -len(listed) <= number < len(listed) else None

    def number(self, text: str) -> int:
        """Return the value of integer arithmetic, divisions cut towards zero. Raises NotKnown."""
        try:
            expanded = self.text(Lexer(text).within(True))
            self.open.refuse(expanded)
            plain = expanded.strip().removeprefix("(").removesuffix(")")
            result = self._count(ast.parse(plain.strip() or "0", mode="eval").body, plain)
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            raise NotKnown(f"the arithmetic {text[:60]} is not computed") from None
        return result

    def _count(self, node: ast.expr, text: str) -> int:
        # Python reads 1_000 and // otherwise than bash
        if len(text) > 200 or re.search(r"\d_|//", text):
            raise ValueError(text)
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name):
            value = self._value(node.id, None)
            self.open.refuse(value or "")
            if not isinstance(value, str) or not re.fullmatch(r"-?(0|[1-9]\d*)", value):
                why = self.doubts.get(node.id) or f"the variable {node.id} has no whole number in the script"
                raise NotKnown(why)
            return int(value)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            inner = node.operand  # -2**2 is 4 in bash, and -4 in Python
            if not (isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Pow)):
                sign = -1 if isinstance(node.op, ast.USub) else 1
                return sign * self._count(inner, text)
        if isinstance(node, ast.BinOp):
            return _joined(node.op, self._count(node.left, text), self._count(node.right, text))
        raise ValueError(text)

    def _printed(self, text: str) -> str:
        """Return what ``expr A OP B`` prints. Raises NotKnown for any other command."""
        try:
            commands = [command for command in Lexer(text).commands() if command.words]
        except ValueError:
            commands = []
        if len(commands) == 1 and not commands[0].redirects and commands[0].words[0].plain() == "expr":
            words = [field for word in commands[0].words for field in self.fields(word)]
            self.open.refuse(words)
            sum_of_two = _EXPR.fullmatch(" ".join(words)) if len(words) == 4 else None
            if sum_of_two and (sum_of_two[2] not in "/%" or int(sum_of_two[3])):
                return str(self.number(f"{int(sum_of_two[1])} {sum_of_two[2]} {int(sum_of_two[3])}"))
        raise NotKnown(f"a value is what another command prints: {' '.join(text.split())[:60]}")


def _quotient(left: int, right: int) -> int:
    """Divide as bash does: cut towards zero."""
    return abs(left) // abs(right) * (1 if (left < 0) is (right < 0) else -1)


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _quotient,
    ast.Mod: lambda left, right: left - right * _quotient(left, right),
    # a larger power would take long to compute, and overflows anyway
    ast.Pow: lambda left, right: left**right if 0 <= right <= 63 else _MOST,
}


def _joined(symbol: ast.operator, left: int, right: int) -> int:
    """Compute as bash does, in 64 bits. Raises ValueError for other operators, and for an overflow."""
    if type(symbol) not in _OPERATORS:
        raise ValueError(symbol)
    result = _OPERATORS[type(symbol)](left, right)
    if not -_MOST <= result < _MOST:
        raise ValueError(result)
    return result


def _home(parts: tuple[WordPart, ...]) -> tuple[WordPart, ...]:
    """Replace a tilde at the start of a word, or of an assignment's value, by the home folder."""
    first = parts[0] if parts else None
    if first is None or first.kind != "text" or first.quoted:
        return parts
    assignment = _NAMED.match(first.text)
    head, rest = (assignment[0], first.text[assignment.end() :]) if assignment else ("", first.text)
    if not rest.startswith("~") or (rest == "~" and len(parts) > 1):
        return parts
    user, slash, more = rest.partition("/")
    # Another user's home depends on the machine that runs the script
    if user != "~":
        raise NotKnown(f"{user} is the home folder of a user")
    home = WordPart("text", os.path.expanduser("~") + slash, True)
    return (WordPart("text", head), home, WordPart("text", more), *parts[1:])


def _check(field_text: _Field) -> None:
    """Raise NotKnown for a word that bash would replace by file names, or by several words."""
    if _BRACES.search(field_text.braces):
        raise NotKnown(
            f"bash makes several words of {field_text.text}", "write the words, or put it into quotes"
        )
    if re.search(r"[*?]|\[[^\]]+\]", field_text.globs) and glob.glob(field_text.text):
        raise NotKnown(
            f"bash puts names of files in place of {field_text.text}",
            "write the names, or put it into quotes",
        )
