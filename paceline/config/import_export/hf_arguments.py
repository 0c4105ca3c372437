"""Arguments as Transformers' HfArgumentParser reads them: what TRL, LLaMA-Factory and ms-swift are told."""

from __future__ import annotations

from paceline.config.import_export.argument_tables import Defaults
from paceline.config.yaml_text.tree import parse_yaml
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject

_TRUE, _FALSE = ("yes", "true", "t", "y", "1"), ("no", "false", "f", "n", "0")


def as_parsed(data: JsonObject, defaults: Defaults) -> tuple[JsonObject, dict[str, str]]:
    """Return the arguments with their own names and types, and for each renamed one the name it was given.

    ``no_x`` sets an x that is on by default to false; the beginning of one name stands for it; a switch
    takes HfArgumentParser's words.
    """
    found: JsonObject = {}
    renamed: dict[str, str] = {}
    for key, value in data.items():
        name = _name(key, defaults)
        if name is not None and name.startswith("no_") and name not in defaults:
            name, value = name[3:], False
        name = name or key
        found.pop(name, None)  # the last one wins
        found[name] = _typed(value, name, defaults)
        renamed.pop(name, None)
        if name != key:
            renamed[name] = key
    return found, renamed


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
    """Return the mapping or list that ``text`` writes as JSON or YAML; the text itself if it writes none."""
    try:
        tree = parse_yaml(text, "command line")
    except ConfigError:
        return text
    data = tree.data() if tree else None
    return data if isinstance(data, (dict, list)) else text
