"""Items of lists set one by one: ``data.train.0.weight=2``, ``rollout.rewards.1.options.pattern=x``."""

from __future__ import annotations

import copy
from typing import get_args, get_origin

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from paceline.config.keys.nearest import nearest
from paceline.config.schema import field_of, item_model
from paceline.config.source import shown
from paceline.core.json_types import Json, JsonObject, inner_object

#: Keys that name a file, of which single keys can be set: ``training.deepspeed.zero_optimization.stage=2``
NAMED_FILES = ("training.deepspeed", "training.fsdp_config", "training.accelerate_config")


class NoItem(Exception):
    """There is no such item. ``what``, ``found`` and ``hint`` are those of a finding."""

    def __init__(self, what: str, found: str, hint: str) -> None:
        super().__init__(what)
        self.what, self.found, self.hint = what, found, hint


def takes_items(info: FieldInfo | None) -> bool:
    """Whether the field is a list."""
    if info is None:
        return False
    return any(get_origin(kind) is tuple for kind in (info.annotation, *get_args(info.annotation)))


def leaf_of(path: str, inner: tuple[str, ...]) -> FieldInfo | None:
    """Return the field of an item's key (``data.train`` and ``0``, ``name``), or of ``path`` itself."""
    info = field_of(path)
    if not inner or info is None:
        return info
    model = item_model(info) if len(inner) == 2 else None
    return model.model_fields.get(inner[1]) if model is not None else None


def with_item(path: str, value: Json, inner: tuple[str, ...], new: Json) -> list[Json]:
    """Return the list ``value`` of field ``path`` with ``new`` at ``inner``: an item's number, then keys.

    ``value`` is in any of the field's forms (one path, a comma-separated text, a list). Raises NoItem.
    """
    items = _items(path, value)
    number, *keys = inner
    if not number.isdecimal() or int(number) >= len(items):
        raise _no_such(path, items, inner, new)
    at = int(number)
    if not keys:
        items[at] = new
        return items
    item = items[at]
    info = field_of(path)
    model = item_model(info) if info is not None else None
    if model is None or not isinstance(item, dict):
        where = f"{path}.{number}"
        raise NoItem(
            f"{where} is a single value without keys", ".".join((path, *inner)), f"{where}={shown(path, new)}"
        )
    if keys[0] not in model.model_fields:
        known = tuple(model.model_fields)
        near = nearest(keys[0], known)
        hint = f"{path}.{number}.{near[0]}=…" if near else f"one of {', '.join(known)}"
        raise NoItem(f"an item of {path} has no key '{keys[0]}'", ".".join((path, *inner)), hint)
    _set(item, keys, new)
    return items


def _set(item: JsonObject, keys: list[str], new: Json) -> None:
    for key in keys[:-1]:
        item = inner_object(item, key)
    item[keys[-1]] = new


def _items(path: str, value: Json) -> list[Json]:
    """Return a copy of the field's list, read from any of its forms; empty for what is no list."""
    info = field_of(path)
    assert info is not None
    if value is None:
        value = info.get_default(call_default_factory=True)
    for reader in info.metadata:
        if isinstance(reader, BeforeValidator):
            try:
                value = reader.func(value)  # type: ignore[call-arg, arg-type]
            except PydanticCustomError:  # the field's own check reports it
                break
    return copy.deepcopy(list(value)) if isinstance(value, (list, tuple)) else []


def _no_such(path: str, items: list[Json], inner: tuple[str, ...], new: Json) -> NoItem:
    number, *keys = inner
    rest = "".join(f".{key}" for key in keys)
    if not items:
        what = f"{path} has no item {number}: it is empty"
        return NoItem(what, ".".join((path, *inner)), f"give the list first: {path}=[…]")
    last = len(items) - 1
    which = f"0 to {last}" if last else "0 alone"
    listed = shown(path, [_name(item) for item in items], 80)
    if not number.isdecimal():
        what = f"{path} is a list: its items have numbers, {which}"
        key = "" if number.lstrip("-").isdigit() else f".{number}"
        return NoItem(what, ".".join((path, *inner)), f"{path}.0{key}{rest}={shown(number, new)}")
    what = f"{path} has no item {number}: it has {which}"
    return NoItem(what, listed, f"{path}.{last}{rest}={shown((keys or [path])[-1], new)}")


def _name(item: Json) -> Json:
    """Return an item in short: its path or name where it has one."""
    return (
        next((item[key] for key in ("path", "name") if key in item), item) if isinstance(item, dict) else item
    )
