"""The words of a shell text as bash's grammar cuts them: quotes, expansions, redirections, here-documents."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_NAME = re.compile(r"\w+|[@*#?$!-]")
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=$")
_OPERATORS = re.compile(r";;&?|;&|&&|\|\||\|&|[;&|()\n]")
_REDIRECT = re.compile(r"&>>?|<<<|<<-?|<>|>>|>\||[<>]&?")
_ENDS = " \t\n;&|()<>"


@dataclass(frozen=True)
class WordPart:
    """A piece of a word. ``kind``: text, escaped, variable, number, command, array, or other."""

    kind: str
    text: str
    quoted: bool = False
    words: tuple[ShellWord, ...] = ()


@dataclass(frozen=True)
class ShellWord:
    """A word before its expansion, and the line at which it begins."""

    parts: tuple[WordPart, ...]
    line: int

    def plain(self) -> str:
        """Return the text of a word without quotes or expansions; empty for others."""
        alone = all(part.kind == "text" and not part.quoted for part in self.parts)
        return "".join(part.text for part in self.parts) if alone else ""


@dataclass
class Redirect:
    """``operator`` and the word after it; ``body``: a here-document's lines, from ``line`` on."""

    operator: str
    word: ShellWord
    body: str = ""
    line: int = 0


@dataclass
class Simple:
    """A command and the operator that ends it."""

    words: list[ShellWord] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)
    end: str = "\n"
    line: int = 1


class Lexer:
    """Cuts a text into simple commands; reserved words stay words. Raises ValueError for an open quote."""

    def __init__(self, text: str, first: int = 1) -> None:
        self._text = text
        self._at = 0
        self._first = first
        self._counted = 0  # the place up to which the lines are in ``_first``
        self._open: list[Redirect] = []

    def commands(self) -> list[Simple]:
        """Return the commands of the whole text, empty ones where only an operator stands."""
        commands = [Simple(line=self._line())]
        while self._at < len(self._text):
            self._blank()
            operator = _OPERATORS.match(self._text, self._at)
            number = re.compile(r"\d+(?=[<>])").match(self._text, self._at)
            redirect = _REDIRECT.match(self._text, number.end() if number else self._at)
            if self._at >= len(self._text):
                break
            if redirect and not self._is_process(redirect.end()):
                self._at = redirect.end()
                commands[-1].redirects.append(self._redirected(redirect[0]))
            elif self._text.startswith("((", self._at) and not commands[-1].words:
                words = self._balanced("(", ")")
                commands[-1].words.append(ShellWord((WordPart("number", words),), self._line()))
            elif operator:
                self._at = operator.end()
                commands[-1].end = operator[0]
                if operator[0] == "\n":
                    self._bodies()
                commands.append(Simple(line=self._line()))
            else:
                commands[-1].words.append(self._word())
        return commands

    def _line(self) -> int:
        self._first += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._first

    def _is_process(self, end: int) -> bool:
        return self._text.startswith("(", end)

    def _blank(self) -> None:
        """Skip blanks, continued lines and a comment."""
        while True:
            match = re.compile(r"(?:[ \t\r]|\\\r?\n)+|#[^\n]*").match(self._text, self._at)
            if match is None:
                return
            self._at = match.end()

    def _redirected(self, operator: str) -> Redirect:
        self._blank()
        redirect = Redirect(operator, self._word())
        if operator in ("<<", "<<-"):
            self._open.append(redirect)
        return redirect

    def _bodies(self) -> None:
        """Read the here-documents that the line before has opened."""
        for redirect in self._open:
            end = "".join(part.text for part in redirect.word.parts)
            redirect.line = self._line()
            lines = []
            while self._at < len(self._text):
                stop = self._text.find("\n", self._at)
                stop = len(self._text) if stop < 0 else stop
                line = self._text[self._at : stop]
                self._at = min(stop + 1, len(self._text))
                line = line.lstrip("\t") if redirect.operator == "<<-" else line
                if line == end:
                    break
                lines.append(f"{line}\n")
            redirect.body = "".join(lines)
        self._open = []

    def _word(self) -> ShellWord:
        line, parts = self._line(), list[WordPart]()
        while self._at < len(self._text):
            char = self._text[self._at]
            so_far = parts[-1].text if len(parts) == 1 and parts[0].kind == "text" else ""
            if char == "(" and _ARRAY.fullmatch(so_far) and not parts[0].quoted:
                parts.append(self._array())
                break
            if char in "<>" and self._is_process(self._at + 1):
                parts.append(WordPart("command", self._balanced("(", ")")))
            elif char in _ENDS:
                break
            else:
                self._piece(parts, "")
        return ShellWord(tuple(parts), line)

    def _array(self) -> WordPart:
        self._at += 1
        words: list[ShellWord] = []
        while True:
            self._blank()
            if self._at >= len(self._text):
                raise ValueError("(")
            if self._text[self._at] == ")":
                self._at += 1
                return WordPart("array", "", words=tuple(words))
            if self._text[self._at] == "\n":
                self._at += 1
            elif self._text[self._at] in _ENDS:
                raise ValueError(self._text[self._at])
            else:
                words.append(self._word())

    def _piece(self, parts: list[WordPart], quote: str) -> None:
        """Read one piece of a word; ``quote`` is the double quote inside one."""
        text, start = self._text, self._at
        char, quoted = text[start], bool(quote)
        if char == "\\":
            after = text[start + 1 : start + 2]
            self._at += 2
            if quoted and after not in '$`"\\\n':
                self._add(parts, f"\\{after}", True)
            elif after != "\n":
                parts.append(WordPart("text" if quoted or after not in " \t" else "escaped", after, True))
        elif char == "'" and not quoted:
            end = text.index("'", start + 1)
            self._add(parts, text[start + 1 : end], True)
            self._at = end + 1
        elif char == '"' and not quoted:
            self._at += 1
            self._add(parts, "", True)
            while text[self._at : self._at + 1] != '"':
                if self._at >= len(text):
                    raise ValueError('"')
                self._piece(parts, '"')
            self._at += 1
        elif char == "`":
            end = text.index("`", start + 1)
            parts.append(WordPart("command", re.sub(r"\\([$`\\])", r"\1", text[start + 1 : end]), quoted))
            self._at = end + 1
        elif char == "$":
            self._dollar(parts, quoted)
        else:
            self._add(parts, char, quoted)
            self._at += 1

    def _dollar(self, parts: list[WordPart], quoted: bool) -> None:
        text, start = self._text, self._at
        name = _NAME.match(text, start + 1)
        self._at += 1
        if text.startswith("((", start + 1):
            inside = self._balanced("(", ")")
            arithmetic = inside.startswith("(") and inside.endswith(")")
            parts.append(WordPart("number" if arithmetic else "command", inside, quoted))
        elif text.startswith("(", start + 1):
            parts.append(WordPart("command", self._balanced("(", ")"), quoted))
        elif text.startswith("{", start + 1):
            parts.append(WordPart("variable", self._balanced("{", "}"), quoted))
        elif name is not None:
            variable = name[0][0] if name[0][0].isdigit() else name[0]
            parts.append(WordPart("variable", variable, quoted))
            self._at += len(variable)
        elif text[start + 1 : start + 2] == "[" or (text[start + 1 : start + 2] in ("'", '"') and not quoted):
            parts.append(WordPart("other", text[start : start + 2]))
        else:
            self._add(parts, "$", quoted)

    def _balanced(self, opens: str, closes: str) -> str:
        """Return what stands between a bracket (the next one) and its end, quotes kept whole."""
        start = self._at = self._text.index(opens, self._at) + 1
        depth = 1
        while depth:
            if self._at >= len(self._text):
                raise ValueError(opens)
            char = self._text[self._at]
            # A bracket in single quotes closes nothing; inside ${…} a quote is text
            if char == "'" and opens == "(":
                self._at = self._text.index("'", self._at + 1)
            elif char == "\\":
                self._at += 1
            depth += (char == opens) - (char == closes)
            self._at += 1
        return self._text[start : self._at - 1]

    @staticmethod
    def _add(parts: list[WordPart], text: str, quoted: bool) -> None:
        if parts and parts[-1].kind == "text" and parts[-1].quoted is quoted:
            text = parts.pop().text + text
        parts.append(WordPart("text", text, quoted))

    def within(self, quoted: bool) -> tuple[WordPart, ...]:
        """Return the pieces of the whole text, as the inside of double quotes or of ``${x:-…}``."""
        parts: list[WordPart] = []
        while self._at < len(self._text):
            if not quoted and self._text[self._at] in _ENDS:
                self._add(parts, self._text[self._at], False)
                self._at += 1
            else:
                self._piece(parts, '"' if quoted else "")
        return tuple(parts)
