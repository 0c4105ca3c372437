"""Arguments of other systems: names and defaults of their wheels, and parsed values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias

from paceline.config.yaml_text.read_file import read_table
from paceline.config.yaml_text.tree import parse_yaml
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject, as_object

_ARGUMENTS = Path(__file__).parent / "arguments"


@cache
def table(name: str) -> JsonObject:
    """Return ``arguments/NAME.json``."""
    return as_object(json.loads((_ARGUMENTS / f"{name}.json").read_text(encoding="utf-8")))


@cache
def steps(program: str) -> list[Json]:
    """Return the steps of ``keys/PROGRAM.toml``, which ``decide`` takes."""
    listed = read_table(program, "import_export")["step"]
    return listed if isinstance(listed, list) else []


#: An argument's name → its default
Defaults: TypeAlias = Mapping[str, object]

#: Nothing is reported unless a file says so; Transformers' project is then of no effect.
NO_TRACKERS: Defaults = {"report_to": "none", "project": None}


def defaults(system: str, classes: Sequence[str] | None = None) -> dict[str, object]:
    """Return name → default of the classes (all: None), later ones over earlier ones.

    A default that only the running program knows is None.
    """
    values: dict[str, object] = {}
    every = as_object(table(system)["classes"])
    for name in every if classes is None else classes:
        values |= {key: _plain(value) for key, value in as_object(every[name]).items()}
    return values


def _plain(value: object) -> object:
    return None if isinstance(value, Mapping) and "computed" in value else value


# As HfArgumentParser's string_to_bool has them
_TRUE, _FALSE = ("yes", "true", "t", "y", "1"), ("no", "false", "f", "n", "0")


def as_parsed(data: JsonObject, defaults: Defaults) -> tuple[JsonObject, dict[str, str]]:
    """Return the arguments with their own names and types, and for each renamed one the name it was given.

    ``no_x`` turns off an x that is on by default; a name may be abbreviated if no other begins so; a switch
    takes HfArgumentParser's words.
    """
    arguments: JsonObject = {}
    renamed: dict[str, str] = {}
    for key, value in data.items():
        name = _name(key, defaults)
        if name is not None and name.startswith("no_") and name not in defaults:
            name, value = name[3:], False
        name = name or key
        arguments.pop(name, None)  # the last one wins
        arguments[name] = _typed(value, name, defaults)
        renamed.pop(name, None)
        if name != key:
            renamed[name] = key
    return arguments, renamed


def _name(key: str, defaults: Defaults) -> str | None:
    """Return the argument that ``key`` is, or abbreviates as argparse allows it; None for an unknown one."""
    names = [*defaults, *(f"no_{name}" for name, value in defaults.items() if value is True)]
    if key in names:
        return key
    begun = [name for name in names if name.startswith(key)]
    return begun[0] if len(begun) == 1 else None


def _typed(value: Json, name: str, defaults: Defaults) -> Json:
    word, default = str(value).lower(), defaults.get(name)
    if isinstance(default, bool) and not isinstance(value, bool):
        return True if word in _TRUE else False if word in _FALSE else value
    return [value] if isinstance(default, list) and isinstance(value, (str, int, float)) else value


def written(text: str) -> Json:
    """Return the mapping or list in ``text`` (JSON or YAML); the text itself if it holds neither."""
    try:
        tree = parse_yaml(text, "command line")
    except ConfigError:
        return text
    data = tree.data() if tree else None
    return data if isinstance(data, (dict, list)) else text
