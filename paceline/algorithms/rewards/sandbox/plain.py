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
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_BYTES = 32 << 20  # of one message
_HEAD = struct.Struct("!I")
_SIMPLE = frozenset({type(None), bool, int, float, str})
# in this order: a bool is an int
_BASES = (bool, int, float, str, bytes, bytearray, list, tuple, dict, frozenset, set)
_OWN: dict[Any, Callable[[Any], Any]] = {int: int.__int__, float: float.__float__, str: str.__str__}

Other = Callable[[Any], Any]


class NotPlain(TypeError):
    """A value that has no plain form."""


def encode(value: Any, other: Other) -> Any:
    """Return ``value`` in JSON types; ``other`` encodes what is not plain, or raises NotPlain."""
    kind = next((base for base in _BASES if isinstance(value, base)), type(value))
    if kind in _SIMPLE:
        return value if type(value) is kind else _OWN[kind](value)
    if kind in (list, tuple, set, frozenset):
        items = list(kind.__iter__(value))
        if not _SIMPLE.issuperset(map(type, items)):
            items = [encode(item, other) for item in items]
        return [kind.__name__, *items]
    if kind is dict:
        return ["dict", *([encode(k, other), encode(v, other)] for k, v in dict.items(value))]
    if kind in (bytes, bytearray):
        return [kind.__name__, bytes(value).hex()]
    return _encode_rarer(value, other)


def _encode_rarer(value: Any, other: Other) -> Any:
    kind = type(value)
    if kind is complex:
        return ["complex", value.real, value.imag]
    if kind is Decimal:
        return ["decimal", str(value)]
    if kind is Fraction:
        return ["fraction", value.numerator, value.denominator]
    if kind is range:
        return ["range", value.start, value.stop, value.step]
    if kind is deque:
        return ["deque", *(encode(item, other) for item in value)]
    if kind.__module__ == "numpy":
        if kind.__name__ == "ndarray" and value.dtype.kind in "biufc":
            return ["array", value.dtype.str, list(value.shape), encode(value.ravel().tolist(), other)]
        if hasattr(value, "item") and not hasattr(value, "__len__"):
            return encode(value.item(), other)
    return other(value)


def decode(data: Any, other: Other) -> Any:
    """Invert ``encode``; ``other`` decodes lists whose name is not a plain type.

    Raises NotPlain for what ``encode`` never produces.
    """
    if type(data) in _SIMPLE:
        return data
    if type(data) is not list or not data or type(data[0]) is not str:
        raise NotPlain("a message that no plain value has")
    name, *rest = data
    try:
        if name in _HOLDING:
            return _HOLDING[name](item if type(item) in _SIMPLE else decode(item, other) for item in rest)
        if name == "dict":
            return {decode(key, other): decode(value, other) for key, value in rest}
        return _RARER[name](*rest) if name in _RARER else other(data)
    except (ValueError, ArithmeticError, TypeError, RecursionError) as error:
        raise NotPlain(f"{name}: {error}") from error


def _array(kind: Any, shape: Any, values: Any) -> Any:
    import numpy

    if str(kind)[1:2] not in tuple("biufc"):
        raise NotPlain("an array of something else than numbers")
    return numpy.array(decode(values, _nothing), numpy.dtype(str(kind))).reshape([int(n) for n in shape])


def _nothing(data: Any) -> Any:
    raise NotPlain("a message that no plain value has")


_HOLDING: dict[str, Callable[[Any], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
}
_RARER: dict[str, Callable[..., Any]] = {
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": lambda real, imag: complex(float(real), float(imag)),
    "decimal": lambda text: Decimal(str(text)),
    "fraction": lambda n, d: Fraction(int(n), int(d)),
    "range": lambda *ends: range(*map(int, ends)),
    "array": _array,
}


def send(channel: socket.socket, message: Any) -> None:
    """Send a message. Raises OSError if the other side is gone, NotPlain if the message is too long."""
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) > MAX_BYTES:
        raise NotPlain(f"a value of more than {MAX_BYTES >> 20} MiB")
    channel.sendall(_HEAD.pack(len(data)) + data)


def receive(channel: socket.socket) -> Any:
    """Return the next message. Raises EOFError if the other side has ended, NotPlain if it is invalid."""
    size = _HEAD.unpack(_exactly(channel, _HEAD.size))[0]
    if size > MAX_BYTES:
        raise NotPlain("a message that is too long")
    try:
        return json.loads(_exactly(channel, size))
    except (ValueError, RecursionError) as error:
        raise NotPlain("a message that is no JSON") from error


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = channel.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError("the other process has ended")
        data += part
    return bytes(data)
