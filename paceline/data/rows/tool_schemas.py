"""The fields of a tool's JSON schema, one by one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from paceline.core.json_types import Json, JsonObject

# Of a schema's fields, those whose keys are names that the schema gives.
_NAMES = ("properties", "$defs", "definitions", "patternProperties")
_DEEPEST = 12


def written_forms(tool: JsonObject) -> Iterator[str]:
    """Yield how templates write a whole tool: as JSON in a line, or indented."""
    for one in (tool, tool.get("function")):
        yield json.dumps(one, ensure_ascii=False)
        yield json.dumps(one, ensure_ascii=False, indent=4)
        yield json.dumps(one, ensure_ascii=False, separators=(",", ":"))


def schema_fields(tool: JsonObject) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield (path, pattern) of every field. Fields of equal patterns are written alike: names that the schema
    gives are ``*`` there, and after a space stand the types that templates tell apart.
    """
    yield from _fields(tool, (), "", "")


def _fields(
    value: Json, path: tuple[str | int, ...], pattern: str, kind: str
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if len(path) > _DEEPEST:
        return
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _fields(item, (*path, number), f"{pattern}[]", kind)
        return
    if not isinstance(value, dict):
        return
    own = value.get("type")
    kind = own if isinstance(own, str) else kind
    named = bool(path) and path[-1] in _NAMES
    for key, item in value.items():
        below = f"{pattern}.{'*' if named else key}".lstrip(".")
        yield (*path, key), f"{below} {kind} {type(item).__name__}"
        yield from _fields(item, (*path, key), below, kind)


def without_field(tool: JsonObject, path: Sequence[str | int]) -> JsonObject:
    """Return the tool without the field at ``path``."""
    copy: JsonObject = json.loads(json.dumps(tool))
    inner: Json = copy
    for key in path[:-1]:
        inner = inner[key]  # type: ignore[index, call-overload]
    del inner[path[-1]]  # type: ignore[arg-type, union-attr]
    return copy
