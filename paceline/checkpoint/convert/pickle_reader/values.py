"""Inert values for a pickle's content, and their JSON between the child and its parent. No torch.

No class is looked up, no function is called.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from paceline.core.json_types import Json

#: A value of a pickle. Only these types are ever made.
Value: TypeAlias = (
    "None | bool | int | float | str | bytes | list[Value] | tuple[Value, ...]"
    " | PickledDict | PickledName | PickledCall | PickledId"
)
Key: TypeAlias = str | int


class Refused(Exception):
    """Paceline does not read this pickle or archive; the text says why."""


@dataclass(frozen=True)
class PickledName:
    """A class or function by its listed name (``torch.float32``): a text, nothing else."""

    name: str


@dataclass(eq=False)
class PickledCall:
    """A recorded call ``name(*args)`` with its later ``state`` and items; it is never made."""

    name: str
    args: tuple[Value, ...] = ()
    state: Value = None
    items: PickledDict | None = None


@dataclass(frozen=True)
class PickledId:
    """A persistent id: in torch's files, it names a tensor's storage."""

    value: Value


@dataclass(eq=False)
class PickledDict:
    """The pairs of a dict, in their order; its keys are never hashed."""

    pairs: list[tuple[Value, Value]] = field(default_factory=list)

    def get(self, key: Key) -> Value:
        """Return the value of a text or number; None where there is none."""
        return next((v for k, v in self.pairs if type(k) is type(key) and k == key), None)

    def texts(self) -> Iterator[tuple[str, Value]]:
        """Iterate over the pairs whose keys are texts."""
        return ((k, v) for k, v in self.pairs if isinstance(k, str))

    def numbers(self) -> Iterator[tuple[int, Value]]:
        """Iterate over the pairs whose keys are whole numbers."""
        return ((k, v) for k, v in self.pairs if isinstance(k, int) and not isinstance(k, bool))


def as_dict(value: Value) -> PickledDict:
    """Return a dict, or an OrderedDict's pairs; an empty one for anything else."""
    if isinstance(value, PickledCall) and value.items is not None:
        return value.items
    return value if isinstance(value, PickledDict) else PickledDict()


def as_list(value: Value) -> list[Value]:
    """Return the items of a list or tuple (also of a ``torch.Size``); nothing for anything else."""
    if isinstance(value, PickledCall) and len(value.args) == 1:
        value = value.args[0]
    return list(value) if isinstance(value, (list, tuple)) else []


def as_integer(value: Value, most: int = 1 << 53) -> int:
    """Return a whole number from 0 up to ``most``. Raises Refused."""
    if type(value) is int and 0 <= value <= most:
        return value
    raise Refused(f"{str(value)[:40]!r} in place of a whole number from 0 to {most}")


def as_shape(value: Value) -> tuple[int, ...]:
    """Return a shape (or strides, or offsets). Raises Refused."""
    sizes = as_list(value)
    if len(sizes) > 16:
        raise Refused(f"a shape of {len(sizes)} dimensions")
    return tuple(as_integer(n) for n in sizes)


MAX_VALUES = 10_000_000
MAX_DEPTH = 80
MAX_ANSWER = 1 << 30


class ValueEncoder:
    """Encode values and count them, since a small pickle can repeat one value a million times."""

    def __init__(self, pickle_bytes: int) -> None:
        self._left = min(MAX_VALUES, 1000 + 20 * pickle_bytes)

    def encode(self, value: Value, depth: int = 0) -> Json:
        """Return ``value`` as JSON types. Raises Refused above the limits."""
        self._left -= 1
        if self._left < 0:
            raise Refused("more values than any checkpoint has: one is repeated within another")
        if depth > MAX_DEPTH:
            raise Refused(f"values nested deeper than {MAX_DEPTH} levels, or within themselves")
        below = depth + 1
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, int):
            return value if abs(value) < 1 << 53 else {"i": str(value)}
        if isinstance(value, float):
            return value if math.isfinite(value) else {"f": str(value)}
        if isinstance(value, bytes):
            return {"b": value.hex()}
        if isinstance(value, list):
            return {"l": [self.encode(item, below) for item in value]}
        if isinstance(value, tuple):
            return {"t": [self.encode(item, below) for item in value]}
        if isinstance(value, PickledDict):
            return {"d": [[self.encode(k, below), self.encode(v, below)] for k, v in value.pairs]}
        if isinstance(value, PickledName):
            return {"n": value.name}
        if isinstance(value, PickledId):
            return {"p": self.encode(value.value, below)}
        return {
            "c": value.name,
            "a": [self.encode(item, below) for item in value.args],
            "s": self.encode(value.state, below),
            "d": None if value.items is None else self.encode(value.items, below),
        }


def decode(coded: Json) -> Value:
    """Decode a value. Raises Refused for anything that ``ValueEncoder`` does not write."""
    if not isinstance(coded, (dict, list)):
        if coded is None or isinstance(coded, (bool, int, float, str)):
            return coded
        raise Refused("an answer of another form")
    if not isinstance(coded, dict) or not coded:
        raise Refused("an answer of another form")
    word = next(iter(coded))
    inner = coded[word]
    if word == "c":
        args, items = coded.get("a"), decode(coded.get("d"))
        state = decode(coded.get("s"))
        if items is not None and not isinstance(items, PickledDict):
            raise Refused("an answer of another form")
        return PickledCall(str(inner), tuple(decode(item) for item in _listed(args)), state, items)
    if word == "d":
        pairs = [_listed(pair) for pair in _listed(inner)]
        return PickledDict([(decode(pair[0]), decode(pair[1])) for pair in pairs])
    if word == "l":
        return [decode(item) for item in _listed(inner)]
    if word == "t":
        return tuple(decode(item) for item in _listed(inner))
    if word == "p":
        return PickledId(decode(inner))
    try:
        return _SIMPLE[word](str(inner))
    except (KeyError, ValueError):
        raise Refused("an answer of another form") from None


_SIMPLE: Mapping[str, Callable[[str], Value]] = {
    "n": PickledName,
    "i": int,
    "f": float,
    "b": bytes.fromhex,
}


def _listed(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise Refused("an answer of another form")
    return value


def parse_answer(line: bytes) -> Json:
    """Return the parsed JSON of an answer. Raises Refused."""
    try:
        answer: Json = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise Refused(f"the child's answer is not JSON: {exc}"[:200]) from None
    return answer
