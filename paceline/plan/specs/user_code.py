"""The user's own code that a config names: what a check that imports it runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from paceline.config.schema import Config
from paceline.core.json_types import Json
from paceline.core.plugins.extensions import EXTENSIONS

_TARGET = re.compile(r"([A-Za-z_][\w.]*):[A-Za-z_][\w.]*")
_NAMES = ("name", "path", "converter")  # what names code in an item of a list


def own_code(config: Config, folder: Path) -> tuple[str, ...]:
    """Return ``FILE (kind module:attr)`` of all code that ``config`` names; of a module elsewhere its name.

    Imports nothing.
    """
    data = config.to_json()
    found: dict[str, None] = {}
    for extension in EXTENSIONS.values():
        for key in extension.key.split(", "):
            value: Json = data
            for part in key.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            for target in _targets(value):
                found[f"{_file(target, folder)} ({extension.words} {target})"] = None
    if config.model.trust_remote_code and config.model.name_or_path:
        found[f"{config.model.name_or_path} (the model's own code: model.trust_remote_code)"] = None
    return tuple(found)


def _targets(value: Json) -> Iterator[str]:
    if isinstance(value, str) and _TARGET.fullmatch(value):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _targets(item)
    elif isinstance(value, dict):
        for name in _NAMES:
            yield from _targets(value.get(name))


def _file(target: str, folder: Path) -> str:
    """Return the file of a target's module if it lies in ``folder``, else the module."""
    module = target.partition(":")[0]
    path = Path(*module.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((str(file) for file in files if (folder / file).is_file()), module)
