"""Command lines of TRL, LLaMA-Factory and ms-swift: the program says the system, the flags are its keys."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.config.exchange import trl
from paceline.config.scalars import resolve_plain
from paceline.config.yaml_tree import parse_yaml
from paceline.core.json_types import Json, JsonObject

_PROGRAMS = {"llamafactory-cli": "llamafactory", "lmf": "llamafactory", "trl": "trl", "swift": "swift"}
_SCRIPTS = {f"{name}.py": name for name in trl.TRAINERS}
_OF_TORCH = ("torchrun", "python", "python3", "accelerate", "deepspeed", "launch", "-m")


@dataclass
class Command:
    """What a command line says: keys, the argument at which each stands (from 1), system, algorithm."""

    name: str
    system: str | None = None
    algorithm: str | None = None
    data: JsonObject = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)


def is_command(text: str) -> bool:
    """Whether ``text`` is a command line in one string, not a file."""
    words = text.split()
    return len(words) > 1 and not Path(text).exists() and Path(words[0]).name in (*_PROGRAMS, *_OF_TORCH)


def read_command(arguments: Sequence[str]) -> Command:
    """Return the keys of a command line; a config file that it names lies below them."""
    words = shlex.split(arguments[0]) if len(arguments) == 1 else list(arguments)
    found = Command(name="command line")
    at = 0
    while at < len(words) and not words[at].startswith("--"):
        _program(words[at], found)
        at += 1
    while at < len(words):
        key, equals, value = words[at].removeprefix("--").partition("=")
        place, values = at + 1, [value] if equals else []
        at += 1
        while not equals and at < len(words) and not words[at].startswith("--"):
            values.append(words[at])
            at += 1
        found.lines[key.replace("-", "_")] = place
        found.data[key.replace("-", "_")] = _value(values)
    return found


def _program(word: str, found: Command) -> None:
    name = Path(word).name
    if name in _PROGRAMS:
        found.system = _PROGRAMS[name]
    elif name in _SCRIPTS:
        found.system, found.algorithm = "trl", _SCRIPTS[name]
    elif name in trl.TRAINERS:
        found.algorithm = name


def _value(values: Sequence[str]) -> Json:
    """A flag alone is true; several values are a list, as the hub's argument parser reads them."""
    parsed: list[Json] = [_one(value) for value in values]
    return True if not parsed else parsed[0] if len(parsed) == 1 else parsed


def _one(value: str) -> Json:
    if value[:1] in ("[", "{"):
        tree = parse_yaml(value, "command line")
        return tree.data() if tree else None
    return resolve_plain(value)
