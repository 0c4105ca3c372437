"""Convert dataclasses to plain JSON and back, for ``plan.json``.

A field with ``UNLESS_DEFAULT`` in its metadata is omitted while it has its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
UNLESS_DEFAULT = {"unless_default": True}


def to_json(value: Any) -> Any:
    """Return a value made of dataclasses, mappings and sequences as plain JSON types."""
    if is_dataclass(value):
        return {f.name: to_json(getattr(value, f.name)) for f in fields(value) if not _left_out(f, value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    return [to_json(item) for item in value] if isinstance(value, (list, tuple)) else value


def _left_out(field: Field[Any], value: object) -> bool:
    return bool(field.metadata.get("unless_default")) and getattr(value, field.name) == _default(field)


def _default(field: Field[Any]) -> object:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def from_json(cls: type[T], data: Mapping[str, Any]) -> T:
    """Return the dataclass from its ``to_json``. Raises TypeError for unknown or missing fields."""
    hints = get_type_hints(cls)
    return cls(**{name: _read(hints.get(name, Any), value) for name, value in data.items()})


def _read(hint: Any, value: Any) -> Any:
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        kinds = [kind for kind in inside if kind is not NoneType]
        return None if value is None else _read(kinds[0], value) if len(kinds) == 1 else value
    if origin is tuple and value is not None:
        return tuple(_read(inside[0], item) for item in value)
    if isinstance(hint, type) and is_dataclass(hint) and isinstance(value, Mapping):
        return from_json(hint, value)
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return {key: _read(inside[1], item) for key, item in value.items()}
    return value
