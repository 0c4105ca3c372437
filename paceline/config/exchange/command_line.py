"""Command lines of TRL, LLaMA-Factory, ms-swift and axolotl, and shell scripts that hold one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.config import codes
from paceline.config.exchange import trl
from paceline.config.exchange.flags import written
from paceline.config.exchange.launchers import SET, Launch, launch_of
from paceline.config.reading import read_text
from paceline.config.scalars import resolve_plain
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject

_PROGRAMS = {
    "llamafactory-cli": "llamafactory",
    "lmf": "llamafactory",
    "train_bash.py": "llamafactory",
    "llamafactory.cli": "llamafactory",
    "trl": "trl",
    "swift": "swift",
    "axolotl": "axolotl",
    "axolotl.cli.train": "axolotl",
}
#: scripts by name → the system and the command or trainer
_SCRIPTS = {f"{name}.py": ("trl", name) for name in trl.TRAINERS}
_SWIFT = re.compile(r"(?:.*/)?swift[./]cli[./](sft|pt|rlhf)(?:\.py)?")
_TRL = re.compile(rf"trl\.scripts\.({'|'.join(trl.TRAINERS)})")
_FILES = (".yaml", ".yml", ".json")
_COMMANDS = (*trl.TRAINERS, "pt", "rlhf")
#: programs that do more than train → the words of theirs that train
_VERBS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("llamafactory-cli", "lmf", "axolotl"), ("train",)),
    "trl": tuple(trl.TRAINERS),
    "swift": ("sft", "pt", "rlhf"),
}
_STARTERS = ("accelerate launch", "accelerate-launch", "torchrun", "deepspeed", "python")
_OVERRIDE = re.compile(r"[A-Za-z_][\w.]*=")  # a path like runs/lr=1/x.yaml is none
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
#: What a shell tells apart. A comment begins a word: ``alpaca#500`` has none.
_SHELL = re.compile(
    r"""(?P<single>'[^']*')|(?P<double>"(?:\\.|[^"\\])*")|(?P<escaped>\\.)|(?P<command>\$\(|`)"""
    r"""|(?P<comment>(?:^|(?<=[\s;&|]))\#[^\n]*)|(?P<redirect>(?:(?<=\s)\d)?(?:&>>?|>>?|<)&?\s*[^\s;&|<>]+)"""
    r"""|(?P<end>[;&|])|(?P<variable>\$(?:\{\w+(?::?-[^}]*)?\}|\w+))""",
    re.S | re.M,
)


@dataclass
class Command:
    """What a command line says.

    ``data``: its keys; ``lines``: the argument (from 1), or the script's line, at which each stands;
    ``environment``: variables set for it; ``config``: a file whose keys lie below its own; ``launch``: what
    starts it.
    """

    name: str
    system: str | None = None
    algorithm: str | None = None
    config: str | None = None
    data: JsonObject = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    launch: Launch = field(default_factory=Launch)


@dataclass(frozen=True)
class _Word:
    text: str
    line: int


def is_command(text: str) -> bool:
    """Whether ``text`` is a command line in one string, or a shell script, and not a config."""
    if Path(text).suffix in (".sh", ".bash") and Path(text).is_file():
        return True
    words = [word for word in text.split() if word != "\\"]
    return len(words) > 1 and not Path(text).exists() and _start(words, [1] * len(words)) is not None


def read_command(arguments: Sequence[str]) -> Command:
    """Return what a command line (its words, or one string), or a shell script that holds one, says.

    Raises ConfigError for a script with no such command, with several, or with unknown variables.
    """
    if len(arguments) == 1 and Path(arguments[0]).is_file():
        return _of_script(arguments[0])
    if len(arguments) == 1:
        first = next(iter(_commands(arguments[0])), ("", 1))
        words = [_Word(word.text, n) for n, word in enumerate(_words(*first), 1)]
    else:
        words = [_Word(word, n) for n, word in enumerate(arguments, 1)]
    return _read(words, "command line")


def _of_script(path: str) -> Command:
    found: list[Command] = []
    values: dict[str, str] = {}
    for text, line in _commands(read_text(path)):
        words = _words(_filled(text, values), line)
        names = [word.text for word in words]
        if names and names[0] == "export":
            words = words[1:]
        if words and words[0].text.startswith("--") and found:
            what = "the command ends before these arguments, so that its program never gets them"
            hint = "remove the comment or the empty line above, or end the line before it with a backslash"
            raise ConfigError(
                codes.CONFIG_IMPORT_COMMAND(what, f"{path}:{words[0].line}", words[0].text, hint)
            )
        if words and all(SET.match(word.text) for word in words):
            values |= dict(word.text.split("=", 1) for word in words)
        elif _start([word.text for word in words], [word.line for word in words]) is not None:
            _refuse_unknown(text, values, path, line)
            command = _read(words, path)
            command.environment = {**values, **command.environment}
            found.append(command)
    if len(found) != 1:
        what = "the script holds several commands that train" if found else "no command here is known"
        places = ", ".join(f"line {next(iter(one.lines.values()), 1)}" for one in found)
        hint = "import one of them: paceline config import 'swift sft --model …' (the command in quotes)"
        raise ConfigError(codes.CONFIG_IMPORT_COMMAND(what, f"{path}:1", places, hint))
    return found[0]


def _commands(text: str) -> Iterator[tuple[str, int]]:
    """Yield the commands of a shell text, and the line at which each begins; a quote may span lines."""
    held, first = "", 1
    for number, line in enumerate(text.split("\n"), 1):
        first = first if held else number
        if line.lstrip().startswith("#") and _is_closed(held):
            line = ""  # a comment ends the command, also where the line before it is continued
        held += line
        if held.rstrip().endswith("\\"):
            held = held.rstrip()[:-1] + " \n"
        elif _is_closed(held):
            yield from _simple(held, first)
            held = ""
        else:
            held += "\n"
    if held.strip():
        yield from _simple(held if _is_closed(held) else f"{held}'", first)


def _simple(text: str, first: int) -> Iterator[tuple[str, int]]:
    """Yield the commands between ``;``, ``&&``, ``||``, ``|`` and ``&``, each with its line."""
    start = 0
    for end in [*(m.start() for m in _SHELL.finditer(text) if m["end"]), len(text)]:
        yield text[start:end], first + text.count("\n", 0, start)
        start = end + 1


def _is_closed(text: str) -> bool:
    """Whether no quote is open at the end."""
    try:
        _split(text)
    except ValueError:
        return False
    return True


def _split(text: str) -> list[str]:
    """Return the words of ``text``, no redirections or comments. Raises ValueError for an open quote."""
    return shlex.split(_SHELL.sub(lambda m: "" if m["comment"] or m["redirect"] else m[0], text))


def _words(text: str, first: int) -> list[_Word]:
    """Return a command's words with their lines. Raises ValueError: open quotes."""
    words: list[_Word] = []
    place = 0
    for word in _split(text):
        place = max(place, text.find(word, place))  # not found, if quotes or escapes stand inside it
        words.append(_Word(word, first + text.count("\n", 0, place)))
    return words


def _filled(text: str, values: Mapping[str, str]) -> str:
    """Return a command with the script's own variables filled in, as a shell does: not in single quotes."""

    def fill(match: re.Match[str]) -> str:
        if not (match["double"] or match["variable"]):
            return match[0]
        special = r'["\\]' if match["double"] else r"""['"\\;&|<>#]"""
        return _VARIABLE.sub(lambda variable: _value_of(variable, values, special), match[0])

    return _SHELL.sub(fill, text)


def _value_of(variable: re.Match[str], values: Mapping[str, str], special: str) -> str:
    """Return a variable's value, with ``special`` characters escaped; what stands there, if it has none."""
    found = values.get(variable[1] or variable[3], variable[2])
    return variable[0] if found is None else re.sub(special, r"\\\g<0>", found)


def _refuse_unknown(text: str, values: Mapping[str, str], path: str, first: int) -> None:
    """Raise ConfigError for a variable without a value, and for another command's output."""
    for match in _SHELL.finditer(text):
        if not (match["double"] or match["variable"] or match["command"]):
            continue
        unset = (m for m in _VARIABLE.finditer(match[0]) if values.get(m[1] or m[3], m[2]) is None)
        name = next((m[1] or m[3] for m in unset), None)
        command = match["command"] or (match["double"] and re.search(r"\$\(|(?<!\\)`", match[0]))
        if not command and name is None:
            continue
        what = f"the variable {name} has no value in the script"
        hint = f"write {name}=… above the command, or its value in place of it"
        if command:
            what, hint = "an argument is what another command prints", "write the value in place of it"
        line = first + text.count("\n", 0, match.start())
        raise ConfigError(codes.CONFIG_IMPORT_COMMAND(what, f"{path}:{line}", match[0], hint))


def _start(words: Sequence[str], lines: Sequence[int]) -> Launch | None:
    """Return what starts the program that trains, and where it stands; None for another command."""
    launch = launch_of(words, lines)
    word, after = [*words[launch.program : launch.program + 2], "", ""][:2]
    name = Path(word).name
    if name in _PROGRAMS:
        verb = after.startswith("-") or "=" in after or Path(after).suffix in _FILES or not after
        return launch if verb or after in _VERBS.get(name, (after,)) else None
    if name in _SCRIPTS or _SWIFT.fullmatch(word) or _TRL.fullmatch(word):
        return launch
    launched = any(starter in launch.launchers for starter in _STARTERS)
    return launch if word.endswith(".py") and (launched or launch.program == 0) else None


def _read(words: Sequence[_Word], name: str) -> Command:
    found = Command(name=name)
    texts, lines = [word.text for word in words], [word.line for word in words]
    found.launch = _start(texts, lines) or launch_of(texts, lines)
    found.environment = dict(found.launch.environment)
    at = found.launch.program
    if at < len(words):
        _program(words[at].text, found)
        at += 1
    while at < len(words) and not words[at].text.startswith("--"):
        _positional(words[at], found)
        at += 1
    end = next((n for n in range(at, len(words)) if words[n].text == "--"), len(words))
    _flags(words[at:end], found)
    if found.system == "axolotl":
        _of_axolotl(words[end + 1 :], found)
    named = found.data.get("config")
    if isinstance(named, str) and Path(named).suffix in _FILES:
        found.config = str(found.data.pop("config"))
    return found


def _of_axolotl(words: Sequence[_Word], found: Command) -> None:
    """``axolotl train --launcher torchrun -- --nproc_per_node 2``: what follows ``--`` is the launcher's."""
    launcher = found.data.pop("launcher", "accelerate" if words else None)
    if launcher in ("accelerate", "torchrun"):
        chosen = "accelerate launch" if launcher == "accelerate" else "torchrun"
        texts = [*chosen.split(), *(word.text for word in words)]
        lines = [*([1] * len(chosen.split())), *(word.line for word in words)]
        found.launch = launch_of(texts, lines)


def _program(word: str, found: Command) -> None:
    name = Path(word).name
    if script := _SWIFT.fullmatch(word):
        found.system, found.algorithm = "swift", script[1]
    elif name in _PROGRAMS:
        found.system = _PROGRAMS[name]
    elif name in _SCRIPTS:
        found.system, found.algorithm = _SCRIPTS[name]
    elif script := _TRL.fullmatch(word):
        found.system, found.algorithm = "trl", script[1]


def _positional(word: _Word, found: Command) -> None:
    """A trainer, a config file, or ``key=value`` as LLaMA-Factory takes it."""
    key, _, value = word.text.partition("=")
    if word.text in _COMMANDS:
        found.algorithm = word.text
    elif _OVERRIDE.match(word.text):
        found.lines[key], found.data[key] = word.line, _one(value)
    elif Path(word.text).suffix in _FILES:
        found.config = word.text


def _flags(words: Sequence[_Word], found: Command) -> None:
    at = 0
    while at < len(words):
        key, equals, value = words[at].text.removeprefix("--").partition("=")
        place, values = words[at].line, [value] if equals else []
        at += 1
        while not equals and at < len(words) and not words[at].text.startswith("--"):
            values.append(words[at].text)
            at += 1
        found.lines[key.replace("-", "_")] = place
        found.data[key.replace("-", "_")] = _value(values)


def _value(values: Sequence[str]) -> Json:
    """A flag alone is true; several values are a list, as the hub's argument parser reads them."""
    parsed: list[Json] = [_one(value) for value in values]
    return True if not parsed else parsed[0] if len(parsed) == 1 else parsed


def _one(value: str) -> Json:
    return written(value) if value[:1] in ("[", "{") else resolve_plain(value)
