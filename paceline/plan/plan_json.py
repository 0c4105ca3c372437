"""Convert dataclasses to plain JSON and back, for ``plan.json``.

A field with ``UNLESS_DEFAULT`` in its metadata is omitted while it has its default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from importlib import resources
from types import NoneType, UnionType
from typing import TYPE_CHECKING, TypeVar, Union, get_args, get_origin, get_type_hints, overload

from paceline.core.json_types import Json, JsonObject

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
UNLESS_DEFAULT = {"unless_default": True}
#: Hints of fields that hold JSON itself.
_AS_IT_IS = {"Json": dict, "JsonObject": dict}


@overload
def to_json(value: DataclassInstance) -> JsonObject: ...
@overload
def to_json(value: DataclassInstance | None) -> JsonObject | None: ...
def to_json(value: DataclassInstance | None) -> JsonObject | None:
    """Return a dataclass made of dataclasses, mappings and sequences as plain JSON types; None for None."""
    if value is None:
        return None
    return {f.name: _plain(getattr(value, f.name)) for f in fields(value) if not _left_out(f, value)}


def _plain(value: Json | DataclassInstance) -> Json:
    if is_dataclass(value):
        return to_json(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _left_out(field: Field[T], value: DataclassInstance) -> bool:
    if not field.metadata.get("unless_default"):
        return False
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    return bool(getattr(value, field.name) == default)


def from_json(cls: type[T], data: Mapping[str, object]) -> T:
    """Return the dataclass from its ``to_json``; parts may already be objects.

    Raises TypeError for unknown or missing fields.
    """
    kind: type = cls
    hints = _hints(kind)
    return cls(**{name: _read(hints.get(name), value) for name, value in data.items()})


@cache  # the families' table has the same few classes hundreds of times, and each process reads it
def _hints(cls: type) -> dict[str, type]:
    return get_type_hints(cls, localns=_AS_IT_IS)


def _read(hint: object, value: object) -> object:
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        kinds = [kind for kind in inside if kind is not NoneType]
        return None if value is None else _read(kinds[0], value) if len(kinds) == 1 else value
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_read(inside[0], item) for item in value)
    if isinstance(hint, type) and is_dataclass(hint) and isinstance(value, Mapping):
        return from_json(hint, value)
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return {key: _read(inside[1], item) for key, item in value.items()}
    return value


def shipped_table(name: str, kind: type[T]) -> T:
    """Return ``data/name.json`` of this package; keys without a field of ``kind`` are notes for readers."""
    text = resources.files("paceline.plan").joinpath(f"data/{name}.json").read_text(encoding="utf-8")
    cls: type = kind
    return from_json(kind, {key: value for key, value in json.loads(text).items() if key in _hints(cls)})
