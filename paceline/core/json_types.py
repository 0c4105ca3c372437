"""Types of values read from JSON or YAML, and written as JSON."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from typing import TypeAlias

#: A value of JSON. A parsed one is built of ``dict`` and ``list``, and ``isinstance`` tells which; the types
#: here are the read-only ones, so that a ``dict[str, int]`` or a tuple may be handed on as one, too.
Json: TypeAlias = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
#: An object of parsed JSON.
JsonObject: TypeAlias = dict[str, Json]
#: How JSON is encoded: a lone surrogate, as a file name in no encoding has, becomes its escape of JSON.
NO_UTF8 = "backslashreplace"


def parse_json(data: bytes, *, unique: bool = False) -> Json:
    """Parse UTF-8 JSON; with ``unique`` a key that appears twice in one object is an error.

    Raises ValueError, also if nested too deeply.
    """
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=unique_keys if unique else None)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def unique_keys(pairs: list[tuple[str, Json]]) -> JsonObject:
    """Return the object of ``pairs``. Raises ValueError for a key that appears twice."""
    unique = dict(pairs)
    if len(unique) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)[:40]!r} appears twice")
    return unique


def as_object(value: Json) -> JsonObject:
    """Return ``value`` if it is an object of parsed JSON, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: Json) -> list[Json]:
    """Return a list's items, or ``value`` as the only one; nothing for null and an empty text."""
    return list(value) if isinstance(value, list) else [value] if value else []


def as_number(value: Json) -> float:
    """Return a number of parsed JSON. Raises ValueError for anything else."""
    if isinstance(value, (int, float)):
        return float(value)
    raise ValueError(f"no number: {value!r}"[:100])


def inner_object(outer: JsonObject, key: str) -> JsonObject:
    """Return the object at ``key``. An empty object replaces any other value there."""
    inner = outer.get(key)
    if not isinstance(inner, dict):
        inner = outer[key] = {}
    return inner


def put_at(outer: JsonObject, keys: Sequence[str], value: Json) -> None:
    """Set the value at a path of keys. Other values on the way are replaced by objects."""
    for key in keys[:-1]:
        outer = inner_object(outer, key)
    outer[keys[-1]] = value


def value_at(value: Json, path: str) -> Json:
    """Return the value at a dotted path (``a.0.b``); None where there is none."""
    for part in path.split("."):
        if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            value = as_object(value).get(part)
    return value


def nearest_key(by_path: Container[str], path: str) -> str:
    """Return the dotted path, or the nearest outer one, that is in ``by_path``; else an empty text."""
    while path and path not in by_path:
        path = path.rpartition(".")[0]
    return path


def leaves(value: Json, path: str = "") -> JsonObject:
    """Return every value by dotted path; lists and empty objects are values."""
    if not isinstance(value, dict) or not value:
        return {path: value}
    inner = (leaves(item, f"{path}.{key}" if path else str(key)) for key, item in value.items())
    return {name: leaf for part in inner for name, leaf in part.items()}
