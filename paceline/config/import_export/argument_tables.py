"""Tables of other systems: arguments and defaults, read from their wheels, and what becomes of each key."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias

from paceline.config.yaml_text.read_file import read_table
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

    A default that only running the system would tell is None.
    """
    found: dict[str, object] = {}
    every = as_object(table(system)["classes"])
    for name in every if classes is None else classes:
        found |= {key: _plain(value) for key, value in as_object(every[name]).items()}
    return found


def _plain(value: object) -> object:
    return None if isinstance(value, Mapping) and "computed" in value else value
