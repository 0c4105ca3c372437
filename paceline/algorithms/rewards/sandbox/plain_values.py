"""Plain values between two processes that do not trust each other.

Length-prefixed JSON, which runs no code when read. None, bool, int, float, str and lists of them are
themselves; other types are a list that begins with the type's name. An instance of a subclass is sent as its
plain base: a custom ``__eq__`` stays behind.
"""

from __future__ import annotations

import json
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, NoReturn, TypeAlias, TypeVar

if TYPE_CHECKING:
    import numpy

    from paceline.core.json_types import Json, JsonObject

    Other = Callable[[object], Json]  # the form of a value that is not plain; raises NotPlain if it has none

MAX_BYTES = 32 << 20  # of one message
_HEAD = struct.Struct("!I")
_SIMPLE = frozenset({type(None), bool, int, float, str})

T = TypeVar("T")
#: A plain value; in it ``T`` stands for what the other process keeps.
Plain: TypeAlias = (
    "T | None | bool | int | float | str | Rarer | list[Plain[T]] | tuple[Plain[T], ...] | set[Plain[T]]"
    " | frozenset[Plain[T]] | deque[Plain[T]] | dict[Plain[T], Plain[T]]"
)
Rarer: TypeAlias = (
    "bytes | bytearray | complex | Decimal | Fraction | range | date | time | timedelta | numpy.ndarray"
)


class NotPlain(TypeError):
    """A value that has no plain form."""


def encode(value: object, other: Other) -> Json:
    """Return ``value`` in JSON types; ``other`` encodes what is not plain, or raises NotPlain."""
    if value is None or isinstance(value, (int, float, str)):
        return _simple(value)
    if isinstance(value, (list, tuple, frozenset, set)):
        name, items = _items(value)
        if not _SIMPLE.issuperset(map(type, items)):
            items = [encode(item, other) for item in items]
        return [name, *items]
    if isinstance(value, dict):
        return ["dict", *([encode(k, other), encode(v, other)] for k, v in dict.items(value))]
    if isinstance(value, (bytes, bytearray)):
        return ["bytes" if isinstance(value, bytes) else "bytearray", bytes(value).hex()]
    return _encode_rarer(value, other)


def _simple(value: int | float | str | None) -> Json:
    if type(value) in _SIMPLE:
        return value
    if isinstance(value, int):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, float) else str.__str__(value)


def _items(value: list[T] | tuple[T, ...] | frozenset[T] | set[T]) -> tuple[str, list[T]]:
    """Return the name of the plain type, and the items as that type (not a subclass) yields them."""
    if isinstance(value, list):
        return "list", list(list.__iter__(value))
    if isinstance(value, tuple):
        return "tuple", list(tuple.__iter__(value))
    if isinstance(value, frozenset):
        return "frozenset", list(frozenset.__iter__(value))
    return "set", list(set.__iter__(value))


def _encode_rarer(value: object, other: Other) -> Json:
    if type(value) is complex:
        return ["complex", value.real, value.imag]
    if type(value) is Decimal:
        return ["decimal", str(value)]
    if type(value) is Fraction:
        return ["fraction", value.numerator, value.denominator]
    if type(value) is range:
        return ["range", value.start, value.stop, value.step]
    if type(value) is timedelta:
        return ["timedelta", value.days, value.seconds, value.microseconds]
    if type(value) in (date, datetime, time):
        assert isinstance(value, (date, time))
        return [type(value).__name__, value.isoformat()]
    if type(value) is deque:
        return ["deque", *(encode(item, other) for item in value)]
    if type(value).__module__ == "numpy":
        import numpy

        if type(value) is numpy.ndarray and value.dtype.kind in "biufc":
            return ["array", value.dtype.str, list(value.shape), encode(value.ravel().tolist(), other)]
        if isinstance(value, numpy.generic) and not hasattr(value, "__len__"):
            return encode(value.item(), other)
    return other(value)


def decode(data: Json, other: Callable[[list[Json]], T]) -> Plain[T]:
    """Invert ``encode``; ``other`` decodes lists whose name is not a plain type.

    Raises NotPlain for what ``encode`` never produces.
    """
    if data is None or isinstance(data, (int, float, str)):
        return data
    if not isinstance(data, list) or not data or not isinstance(name := data[0], str):
        raise NotPlain("a message that does not encode a plain value")
    rest = data[1:]
    try:
        if name == "dict":
            return {decode(key, other): decode(value, other) for key, value in map(_pair, rest)}
        if name in _RARER:
            return _RARER[name](*rest)
        if name not in _COLLECTIONS:
            return other(data)
        return _collection(
            name, (item if isinstance(item, (int, float, str)) else decode(item, other) for item in rest)
        )
    except (ValueError, ArithmeticError, TypeError, RecursionError) as error:
        raise NotPlain(f"{name}: {error}") from error


def decode_call(
    message: JsonObject, other: Callable[[list[Json]], T]
) -> tuple[list[Plain[T]], dict[str, Plain[T]]]:
    """Return the arguments of a call by place and by name. Raises NotPlain."""
    arguments, named = decode(message.get("arguments"), other), decode(message.get("named"), other)
    if not isinstance(arguments, list) or not isinstance(named, dict | None):
        raise NotPlain("a call without arguments")
    return arguments, {str(name): value for name, value in (named or {}).items()}


def _pair(item: Json) -> tuple[Json, Json]:
    if isinstance(item, list) and len(item) == 2:
        return item[0], item[1]
    raise NotPlain("no pair of key and value")


def _collection(name: str, items: Iterable[Plain[T]]) -> Plain[T]:
    if name == "list":
        return list(items)
    if name == "tuple":
        return tuple(items)
    if name == "deque":
        return deque(items)
    return set(items) if name == "set" else frozenset(items)


def _array(kind: Json, shape: Json, values: Json) -> numpy.ndarray:
    import numpy

    if str(kind)[1:2] not in tuple("biufc") or not isinstance(shape, list):
        raise NotPlain("an array of something other than numbers")
    return numpy.array(decode(values, _nothing), numpy.dtype(str(kind))).reshape(
        [int(str(size)) for size in shape]
    )


def _nothing(data: list[Json]) -> NoReturn:
    raise NotPlain("a message that does not encode a plain value")


_COLLECTIONS = frozenset({"list", "tuple", "set", "frozenset", "deque"})
_RARER: dict[str, Callable[..., Rarer]] = {
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": lambda real, imag: complex(float(real), float(imag)),
    "decimal": lambda text: Decimal(str(text)),
    "fraction": lambda n, d: Fraction(int(n), int(d)),
    "range": lambda *ends: range(*map(int, ends)),
    "timedelta": timedelta,
    "date": date.fromisoformat,
    "datetime": datetime.fromisoformat,
    "time": time.fromisoformat,
    "array": _array,
}


def send(channel: socket.socket, message: Mapping[str, Json]) -> None:
    """Send a message. Raises OSError if the other side is gone, NotPlain if the message is too long."""
    data = json.dumps(message, separators=(",", ":")).encode()
    # the other side would end the conversation over it
    if len(data) > MAX_BYTES:
        raise NotPlain(f"a value of more than {MAX_BYTES >> 20} MiB")
    channel.sendall(_HEAD.pack(len(data)) + data)


def receive(channel: socket.socket) -> JsonObject:
    """Return the next message. Raises EOFError if the other side has ended, NotPlain if it is invalid."""
    size = _HEAD.unpack(_exactly(channel, _HEAD.size))[0]
    if size > MAX_BYTES:
        raise NotPlain("a message that is too long")
    try:
        message: Json = json.loads(_exactly(channel, size))
    except (ValueError, RecursionError) as error:
        raise NotPlain("a message that is not valid JSON") from error
    if not isinstance(message, dict):
        raise NotPlain("a message that is no object")
    return message


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = channel.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError("the other process has ended")
        data += part
    return bytes(data)
