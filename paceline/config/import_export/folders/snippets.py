"""Shell texts inside other files: the recipes of a Makefile, the command of a Dockerfile."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from paceline.config.import_export.folders.list_files import FolderFile


@dataclass(frozen=True)
class Snippet:
    """A shell text inside another file.

    - ``lines``: the file's line of each line of the text; empty: the same. ``words``: the file's line of each
      word of a text that is one command
    - ``label``: its target, container or service
    - ``environment``: variables set for it
    - ``written``: files that exist when it runs, with the line of each
    - ``counts``: nodes and processes per node, with the key and line of each
    - ``folder``: where it runs
    """

    file: str
    text: str
    lines: tuple[int, ...] = ()
    words: tuple[int, ...] = ()
    label: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    written: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    counts: Mapping[str, tuple[int, str, int]] = field(default_factory=dict)
    folder: str = ""

    def line(self, number: int) -> int:
        """Return the file's line of a line, or of a word, of the text."""
        lines = self.words or self.lines
        return lines[min(number, len(lines)) - 1] if lines else number


def joined_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line with its number, a line that ends with a backslash together with those that follow."""
    held, first = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        first = first or number
        if line.endswith("\\"):
            held += f"{line}\n"
            continue
        yield first, held + line
        held, first = "", 0
    if held:
        yield first, held


_SET = re.compile(r"(?:export\s+|override\s+)*([\w.-]+)\s*(\?|::?:?|\+)?=\s*(.*)", re.S)
_RULE = re.compile(r"([^\t#=:][^=:]*?)\s*::?(?!=)\s*(.*)", re.S)
_VARIABLE = re.compile(
    r"\$(?:\$|\(([\w.@<^*-]+)\)|\{([\w.@<^*-]+)\}|([@<^*\w])|\((\w+)\s([^()]*(?:\([^()]*\)[^()]*)*)\))"
)
_CONDITIONS = ("ifeq", "ifneq", "ifdef", "ifndef")
_DEEPEST = 16


class _Makefile:
    """A Makefile, read from its top; variables set under a condition stay open.

    Each recipe line becomes a snippet, with make's variables filled in.
    """

    def __init__(self, file: FolderFile) -> None:
        self._file = file
        self._values: dict[str, str] = {}
        self._of_target: dict[str, dict[str, str]] = {}
        self._recipes: list[tuple[int, str, str, str]] = []

    def snippets(self) -> Iterator[Snippet]:
        conditions, target, needs = 0, "", ""
        for number, line in joined_lines(self._file.text):
            word = line.strip().partition(" ")[0]
            if line.startswith("\t") and target:
                self._recipes.append((number, line[1:], target, needs))
            elif word in _CONDITIONS or word == "endif":
                conditions = max(0, conditions + (-1 if word == "endif" else 1))
            elif match := _SET.fullmatch(line.strip()):
                self._set(self._values, match, conditions > 0)
            elif rule := _RULE.fullmatch(line):
                target, needs = rule[1].strip(), rule[2].partition("#")[0].strip()
                if match := _SET.fullmatch(needs):  # a variable of the target alone
                    self._set(self._of_target.setdefault(target, {}), match, conditions > 0)
        for number, recipe, target, needs in self._recipes:
            text = self._expanded(recipe.lstrip().lstrip("@-+").lstrip(), self._names(target, needs), 0)
            lines = tuple(range(number, number + text.count("\n") + 1))
            yield Snippet(self._file.path, text, lines, label=target)

    def _set(self, values: dict[str, str], match: re.Match[str], doubtful: bool) -> None:
        name, operator, value = match.groups()
        value = re.sub(r"\\\n\s*", " ", value.partition(" #")[0]).strip()
        if doubtful:
            values.pop(name, None)
        elif operator == "+":
            values[name] = f"{values.get(name, '')} {value}".strip()
        elif operator != "?" or name not in values:
            values[name] = value

    def _names(self, target: str, needs: str) -> dict[str, str]:
        first = needs.partition(" ")[0]
        return {**self._values, **self._of_target.get(target, {}), "@": target, "<": first, "^": needs}

    def _expanded(self, text: str, values: Mapping[str, str], depth: int) -> str:
        """Fill in make's variables; an unknown one becomes the shell's, so that its value stays open."""

        def value(match: re.Match[str]) -> str:
            if match[0] == "$$":
                return "$"
            name = match[1] or match[2] or match[3]
            if name is None:  # $(shell …) is what a command prints, and the other functions are not computed
                return f"$({match[4]} {match[5]})" if match[4] != "shell" else f"$({match[5]})"
            if name in values and depth < _DEEPEST:
                return self._expanded(values[name], values, depth + 1)
            return "$" + "{" + name + "}" if name.isidentifier() else match[0]

        return _VARIABLE.sub(value, text)


_INSTRUCTION = re.compile(r"\s*([A-Za-z]+)\s+(.*)", re.S)
_PAIR = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\'[^\']*\'|(?:[^\s\\]|\\.)*)')


def dockerfile_snippets(file: FolderFile) -> list[Snippet]:
    """Return the command of the last stage's container: its ENTRYPOINT with its CMD."""
    environment: dict[str, str] = {}
    started: dict[str, tuple[int, str]] = {}
    folder = ""
    for number, line in joined_lines(_without_comments(file.text)):
        match = _INSTRUCTION.fullmatch(line)
        name, rest = (match[1].upper(), match[2].strip()) if match else ("", "")
        if name == "FROM":
            environment, started, folder = {}, {}, ""
        elif name in ("ENV", "ARG"):
            pairs = _PAIR.findall(rest) or [tuple([*rest.split(None, 1), ""][:2])]
            environment |= {key: value.strip("\"'") for key, value in pairs}
        elif name == "WORKDIR":
            folder = rest
        elif name in ("CMD", "ENTRYPOINT"):
            started[name] = number, rest
    if not started:
        return []
    entry, command = started.get("ENTRYPOINT"), started.get("CMD")
    first = entry or command
    text = " ".join(_shell_form(part[1]) for part in (entry, command) if part)
    if entry and not entry[1].startswith("["):
        text = _shell_form(entry[1])  # CMD is ignored then
    begins = first[0] if first else 1
    lines = tuple(range(begins, begins + text.count("\n") + 1))
    return [Snippet(file.path, text, lines, environment=environment, folder=folder)]


def _without_comments(text: str) -> str:
    """Return the text with the comments inside an instruction as empty parts of it."""
    lines: list[str] = []
    for line in text.split("\n"):
        inside = bool(lines) and lines[-1].endswith("\\")
        lines.append("\\" if inside and line.lstrip().startswith("#") else line)
    return "\n".join(lines)


def _shell_form(text: str) -> str:
    """Return an instruction's command as a shell's text; of the exec form the words, quoted."""
    try:
        words = json.loads(text)
    except ValueError:
        return text
    return shlex.join(map(str, words)) if isinstance(words, list) else text


READERS: dict[str, Callable[[FolderFile], list[Snippet]]] = {
    "makefile": lambda file: list(_Makefile(file).snippets()),
    "dockerfile": dockerfile_snippets,
}
