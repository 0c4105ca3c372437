"""The commands of a shell script with their arguments, as bash runs it; uncertain ones are refused."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from paceline.config.import_export.commands.launchers import SET, launch_of
from paceline.config.import_export.commands.open_values import (
    MEETING_VARIABLES,
    NotKnown,
    before_open,
    is_open,
    may_stay_open,
)
from paceline.config.import_export.commands.shell_values import Values
from paceline.config.import_export.commands.shell_words import Lexer, ShellWord, Simple, WordPart

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_BLOCKS = {"if": "fi", "for": "done", "while": "done", "until": "done", "select": "done", "case": "esac"}
_GOES_ON = ("then", "else", "elif", "do", "!", "time")
_DECLARES = ("export", "declare", "typeset", "readonly", "local")
_READS = ("read", "mapfile", "readarray", "getopts", "let", "printf", "wait")
_SHELL = re.compile(r"(?:.*/)?(?:ba|da|z|k)?sh")
#: scripts that set up a shell, and no variable of a run
_SETTING_UP = re.compile(r".*(activate|\.bashrc|\.bash_profile|\.profile|conda\.sh|setvars\.sh|/profile)$")


@dataclass
class Ran:
    """A command with its arguments and their lines. ``problems``: why they are not certain, and where.

    - ``environment``: what the script exports
    - ``places``: the line of each variable
    - ``files``: texts of here-documents with their first line; None for an uncertain text
    """

    words: list[str]
    lines: list[int]
    line: int
    problems: list[tuple[NotKnown, int]] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    files: dict[str, tuple[str | None, int]] = field(default_factory=dict)


class Script:
    """Runs a script's assignments, and yields its other commands; those that ``trains`` accepts with all
    arguments.

    Raises ValueError for open quotes.
    """

    def __init__(
        self,
        text: str,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        trains: Callable[[Sequence[str], Sequence[int]], bool],
    ) -> None:
        # Only a command that trains is expanded in full: others may hold what is not known
        self._trains = trains
        self._commands = Lexer(text).commands()
        self._values = Values(dict(variables), arguments=list(arguments))
        self._variables = variables
        self._blocks: list[tuple[str, int]] = []
        self._saved: list[Values] = []
        self._files: dict[str, tuple[str | None, int]] = {}
        self._before = "\n"
        self._certain = True  # whether the commands before, in a chain of &&, all succeed
        self._pattern = False  # whether a pattern of a `case` comes next
        self._function = False
        self._functions: set[str] = set()
        self._typed: set[str] = set()

    def ran(self) -> Iterator[Ran]:
        """Yield each command in order, up to one that ends the script."""
        for command in self._commands:
            words = self._opened(command)
            if words:
                yield from self._simple(command, words)
                ends = words[0].plain() in ("exit", "return") and not self._saved
                if ends and not self._doubt(command):
                    return
            self._closed(command)

    def _opened(self, command: Simple) -> list[ShellWord]:
        """Follow the reserved words before a command; return the command's own words."""
        words = list(command.words)
        while words:
            word = words[0].plain()
            if self._pattern and word != "esac":
                return []
            if word in _BLOCKS:
                self._blocks.append((word, words[0].line))
                self._pattern = word == "case" and command.end != ")"
                if word in ("for", "select") and len(words) > 1:
                    self._values.doubt(words[1].plain(), f"a loop sets {words[1].plain()}")
                if word in ("for", "select", "case"):
                    return []
            elif word in _BLOCKS.values():
                self._pattern = False
                self._pop(*(block for block, end in _BLOCKS.items() if end == word))
            elif word == "{":
                self._blocks.append(("function" if self._function else "group", words[0].line))
                self._function = False
            elif word == "}":
                self._pop("function", "group")
            elif word == "function":
                self._function = True
                self._functions |= {word_after.plain() for word_after in words[1:2]}
                return []
            elif word not in _GOES_ON:
                return words
            words.pop(0)
        return words

    def _pop(self, *names: str) -> None:
        if self._blocks and self._blocks[-1][0] in names:
            self._blocks.pop()

    def _closed(self, command: Simple) -> None:
        """Follow the operator after a command."""
        end = command.end
        if end == "(" and len(command.words) == 1 and command.words[0].plain() not in _BLOCKS:
            self._function = True  # name() {
            self._functions.add(command.words[0].plain())
        elif end == "(" and not command.words:
            self._saved.append(copy.deepcopy(self._values))
        elif end == ")" and self._saved and not (self._blocks and self._blocks[-1][0] == "case"):
            # A subshell's assignments end with it
            self._values = self._saved.pop()
        if end in (";;", ";&", ";;&", ")"):
            self._pattern = end != ")"
        if not command.words and end == "\n":
            return
        name = command.words[0].plain() if command.words else ""
        harmless = name in (*_DECLARES, "set") or all(_ASSIGNED.match(_start(word)) for word in command.words)
        self._certain = end != "||" and (end != "&&" or (self._certain and harmless))
        self._before = end

    def _doubt(self, command: Simple) -> str:
        """Return why it is uncertain whether a command runs; empty if it does."""
        conditional = [block for block in self._blocks if block[0] != "group"]
        if conditional:
            name, line = conditional[-1]
            return f"stands inside `{name}` (line {line})"
        if not self._certain:
            return f"stands after `{self._before}`"
        if self._before in ("|", "|&") or command.end in ("|", "|&", "&"):
            return "stands in a pipe, or in the background"
        return ""

    def _simple(self, command: Simple, words: list[ShellWord]) -> list[Ran]:
        count = next((n for n, word in enumerate(words) if not _ASSIGNED.match(_start(word))), len(words))
        doubt = self._doubt(command)
        if count == len(words):
            for word in words:
                self._assign(word, doubt, words[0].line)
            return []
        name = words[count].plain()
        if words[count].parts and words[count].parts[0].kind == "number":
            for variable in re.findall(r"[A-Za-z_]\w*", words[count].parts[0].text):
                self._values.doubt(variable, f"`((…))` may set {variable}")
            return []
        if name in _DECLARES:
            self._declare(words[count + 1 :], name, doubt)
            return []
        if self._changes(name, words[count + 1 :], doubt):
            return []
        self._heredocs(command, name, doubt)
        return self._expanded(words, doubt)

    def _expanded(self, words: list[ShellWord], doubt: str) -> list[Ran]:
        ran = Ran([], [], words[0].line)
        self._fields(words, ran, patterns=False)
        inner = self._inside(ran)
        trains = [each for each in inner if self._trains(each.words, each.lines)]
        if not trains:
            self._settle(ran)
            if not self._trains(ran.words, ran.lines):
                return [ran]
            ran = Ran([], [], words[0].line, files=dict(self._files))
            self._fields(words, ran, patterns=True)
            self._settle(ran)
            trains = [ran]
        for each in trains:
            self._surround(each, words[0].line, doubt)
        return inner or trains

    def _inside(self, outer: Ran) -> list[Ran]:
        """Return the commands of a shell's text (``bash -c``), each with the words that start the shell
        before it."""
        words = outer.words
        shell = next((n for n, word in enumerate(words) if _SHELL.fullmatch(word)), len(words))
        after = [n for n in range(shell + 1, len(words) - 1) if re.fullmatch("-[a-z]*c", words[n])]
        before = Ran(words[:shell], outer.lines[:shell], outer.line)
        if not after or launch_of(words, outer.lines).program != shell:
            return []
        self._settle(before)
        text, arguments = words[after[0] + 1], words[after[0] + 3 :]
        inner = Script(text, arguments, {**self._variables, **self._exports()}, self._trains)
        inner._values.open = self._values.open
        found = []
        for ran in inner.ran():
            ran.words, ran.line = [*before.words, *ran.words], outer.line
            ran.lines = [outer.line] * len(ran.words)
            ran.problems = [*before.problems, *((problem, outer.line) for problem, _ in ran.problems)]
            found.append(ran)
        return found

    def _exports(self) -> dict[str, str]:
        """Return the variables that a command gets, without open ones."""
        exported = {name: self._values.known.get(name) for name in self._values.exported}
        return {n: value for n, value in exported.items() if isinstance(value, str) and not is_open(value)}

    def _settle(self, ran: Ran) -> None:
        """Restore the script's text of open values where they may stay open; report the others as
        problems."""
        program = launch_of(ran.words, ran.lines).program
        words, lines = list[str](), list[int]()
        for index, (text, line) in enumerate(zip(ran.words, ran.lines, strict=True)):
            variable = SET.match(text)
            if is_open(text) and index < program and variable and variable[0][:-1] in MEETING_VARIABLES:
                continue
            if is_open(text) and index < program and may_stay_open(ran.words, index):
                text = self._values.open.written(text)
            elif is_open(text):
                ran.problems += [(problem, line) for problem in self._values.open.problems(text)]
                text = before_open(text)
                if not text:
                    continue
            words.append(text)
            lines.append(line)
        ran.words, ran.lines = words, lines

    def _surround(self, ran: Ran, line: int, doubt: str) -> None:
        """Add to a command that trains what the script exports, and the block that it stands in."""
        ran.files |= self._files
        ran.environment = {**self._exports(), **ran.environment}
        ran.places = {
            name: self._values.lines[name] for name in ran.environment if name in self._values.lines
        }
        if doubt.startswith("stands inside"):
            what = f"the command {doubt}: how often it runs, and with what, only bash tells"
            problem = NotKnown(what, "import the command alone: paceline config import '…' (in quotes)")
            ran.problems = [(problem, line)]

    def _fields(self, words: list[ShellWord], ran: Ran, *, patterns: bool) -> None:
        """Expand each word into arguments; the first that is not known is the command's problem."""
        leading = True
        for word in words:
            leading = leading and _ASSIGNED.match(_start(word)) is not None
            try:
                if any(part.kind == "escaped" for part in word.parts) and not _letters(word):
                    raise NotKnown(
                        "a backslash before a blank continues no line: the blank is an argument",
                        "remove the blank after the backslash",
                    )
                text = self._values.text(word.parts) if leading else ""
                fields = [text] if leading else self._values.fields(word, patterns)
            except NotKnown as problem:
                ran.problems.append((problem, word.line))
                fields = [_start(word)] if _start(word) else []
            ran.words += fields
            ran.lines += [word.line] * len(fields)

    def _assign(self, word: ShellWord, doubt: str, line: int) -> None:
        match = _ASSIGNED.match(_start(word))
        if match is None:
            return
        name, adds = match[1], bool(match[2])
        self._values.splits &= name != "IFS"
        try:
            value = self._named(self._assigned(word, match), name, word.line or line)
            before = self._values.known.get(name)
            doubt = doubt or ("has a type of its own" if name in self._typed else "")
            if doubt or (adds and before is None):
                raise NotKnown(doubt or "has no value before it")
            if adds and isinstance(before, list):
                value = [*before, *(value if isinstance(value, list) else [])]
            elif adds and isinstance(before, str) and isinstance(value, str):
                value = before + value
            self._values.set(name, value)
            self._values.lines[name] = word.line or line
        except NotKnown as problem:
            why = f"{name} is not certain (line {word.line or line}): {_why(problem.what)}"
            self._values.doubt(name, problem.what if " is not certain (line " in problem.what else why)

    def _named(self, value: str | list[str], name: str, line: int) -> str | list[str]:
        """Return a value whose open parts are from now on those of the variable ``name``."""
        if isinstance(value, list):
            return [self._values.open.assigned(text, name, line) for text in value]
        return self._values.open.assigned(value, name, line)

    def _assigned(self, word: ShellWord, match: re.Match[str]) -> str | list[str]:
        array = next((part for part in word.parts if part.kind == "array"), None)
        if array is not None:
            return [text for inner in array.words for text in self._values.fields(inner)]
        return self._values.text((WordPart("text", word.parts[0].text[match.end() :]), *word.parts[1:]))

    def _declare(self, words: list[ShellWord], name: str, doubt: str) -> None:
        exports = name == "export" or any("x" in word.plain() for word in words if word.plain()[:1] == "-")
        flags = "".join(word.plain() for word in words if word.plain()[:1] == "-")
        typed = name != "export" and re.search("[iluAn]", flags)
        for word in words:
            match = re.match(r"[A-Za-z_]\w*", _start(word))
            if match is not None:
                self._typed |= {match[0]} if typed else set()
                self._assign(word, doubt, word.line)
                self._values.exported |= {match[0]} if exports else set()

    def _changes(self, name: str, words: list[ShellWord], doubt: str) -> bool:
        """Follow a builtin that changes variables; return whether it is one."""
        plain = [word.plain() for word in words]
        if name == "set" and plain[:1] == ["--"]:
            try:
                self._values.arguments = [
                    variable for word in words[1:] for variable in self._values.fields(word)
                ]
            except NotKnown:
                self._values.arguments = []
                for digit in "@*#123456789":
                    self._values.doubts[digit] = "`set --` gives the script arguments that are not known"
        elif name == "shift":
            count = int(plain[0]) if plain and plain[0].isdecimal() else 1
            self._values.arguments = self._values.arguments[count:]
        elif name == "unset":
            for variable in plain:
                self._values.doubt(variable, doubt) if doubt else self._values.unset(variable)
        elif name in _READS:
            for variable in re.findall(r"[A-Za-z_]\w*", " ".join(plain)):
                if variable in self._values.known:
                    self._values.doubt(variable, f"`{name}` sets {variable}")
        elif name in self._functions or (
            name in ("source", ".", "eval") and not _SETTING_UP.match(" ".join(plain))
        ):
            for variable in list(self._values.known):
                self._values.doubt(variable, f"`{name}` may set {variable}")
        else:
            return name in ("set", "unset", "shift")
        return True

    def _heredocs(self, command: Simple, name: str, doubt: str) -> None:
        """Keep a file that ``cat > FILE <<EOF`` or ``tee FILE <<EOF`` writes."""
        body = next((redirect for redirect in command.redirects if redirect.operator.startswith("<<")), None)
        to = next((redirect.word for redirect in command.redirects if redirect.operator in (">", ">|")), None)
        if name == "tee" and len(command.words) == 2:
            to = command.words[1]
        if body is None or to is None or name not in ("cat", "tee") or body.operator == "<<<":
            return
        quoted = any(part.quoted for part in body.word.parts)
        try:
            files = [file for file in self._values.fields(to) if not is_open(file)]
        except NotKnown:
            return
        text: str | None = None
        with contextlib.suppress(NotKnown, ValueError):
            text = body.body if quoted else self._values.text(Lexer(body.body).within(True))
        text = None if text is not None and is_open(text) else text
        for file in files:
            self._files[file] = (text if name == "tee" or not doubt else None, body.line)


def _letters(word: ShellWord) -> str:
    return "".join(part.text for part in word.parts).strip()


def _start(word: ShellWord) -> str:
    """Return the unquoted text at a word's beginning."""
    first = word.parts[0] if word.parts else None
    return first.text if first and first.kind == "text" and not first.quoted else ""


def _why(reason: str) -> str:
    return f"it {reason}" if reason.startswith(("stands", "has ")) else reason
