"""Values of a pickle as JSON, from the child to its parent. No torch."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping

from paceline.checkpoint.convert.pickle_reader.values import (
    PickledCall,
    PickledDict,
    PickledId,
    PickledName,
    Refused,
    Value,
)
from paceline.core.json_types import Json

MAX_VALUES = 10_000_000
MAX_DEPTH = 80
MAX_ANSWER = 1 << 30


class ValueEncoder:
    """Counts what it writes: a pickle can name one value a million times within another."""

    def __init__(self, pickle_bytes: int) -> None:
        self._left = min(MAX_VALUES, 1000 + 20 * pickle_bytes)

    def encode(self, value: Value, depth: int = 0) -> Json:
        """Return ``value`` in words of JSON. Raises Refused above the limits."""
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
            return {"l": [self.encode(one, below) for one in value]}
        if isinstance(value, tuple):
            return {"t": [self.encode(one, below) for one in value]}
        if isinstance(value, PickledDict):
            return {"d": [[self.encode(k, below), self.encode(v, below)] for k, v in value.pairs]}
        if isinstance(value, PickledName):
            return {"n": value.name}
        if isinstance(value, PickledId):
            return {"p": self.encode(value.value, below)}
        return {
            "c": value.name,
            "a": [self.encode(one, below) for one in value.args],
            "s": self.encode(value.state, below),
            "d": None if value.items is None else self.encode(value.items, below),
        }


def decode(coded: Json) -> Value:
    """Return the value again. Raises Refused for what ``ValueEncoder`` does not write."""
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
        return PickledCall(str(inner), tuple(decode(one) for one in _listed(args)), state, items)
    if word == "d":
        pairs = [_listed(pair) for pair in _listed(inner)]
        return PickledDict([(decode(pair[0]), decode(pair[1])) for pair in pairs])
    if word == "l":
        return [decode(one) for one in _listed(inner)]
    if word == "t":
        return tuple(decode(one) for one in _listed(inner))
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
        found: Json = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise Refused(f"the child's answer is not JSON: {exc}"[:200]) from None
    return found
