"""Reads a pickle without running it, and records its calls. Uses neither torch nor Python's own reader.

The binary instructions of protocols 2 to 5 are known; every other one is refused, and so is every name that
is not listed (``listed.LISTED``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container
from typing import TypeAlias

from paceline.checkpoint.convert.pickle_reader.values import (
    PickledCall,
    PickledDict,
    PickledId,
    PickledName,
    Refused,
    Value,
)

MAX_BYTES = 256 << 20
MAX_STACK = 10_000_000
_MAX_LONG = 64  # bytes of a whole number
_DICTS = ("collections.OrderedDict", "collections.defaultdict", "builtins.dict", "__builtin__.dict")
_Step: TypeAlias = "Callable[[PickleMachine], None]"


class PickleMachine:
    """The stack and the memo of one pickle."""

    def __init__(self, data: bytes, listed: Container[str]) -> None:
        if len(data) > MAX_BYTES:
            raise Refused(f"a pickle of {len(data)} bytes; at most {MAX_BYTES} are read")
        self._data, self._at, self._listed = data, 0, listed
        self._stack: list[Value] = []
        self._marks: list[int] = []
        self._memo: dict[int, Value] = {}

    def run(self) -> Value:
        """Return the pickle's value. Raises Refused."""
        while True:
            code = self._take(1)
            if code == b".":
                return self._pop()
            step = _STEPS.get(code)
            if step is None:
                raise Refused(f"the instruction {code!r} at byte {self._at - 1}, which is none that is read")
            step(self)
            if len(self._stack) > MAX_STACK or len(self._memo) > MAX_STACK:
                raise Refused(f"a pickle of more than {MAX_STACK} values")

    # Bytes, the stack and the memo.

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise Refused(
                f"the pickle ends at byte {len(self._data)}, within an instruction of {count} bytes"
            )
        taken, self._at = self._data[self._at : end], end
        return taken

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    def _text(self, size: int) -> str:
        try:
            return self._take(self._number(size)).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise Refused(f"a text before byte {self._at} that is not UTF-8") from None

    def _push(self, value: Value) -> None:
        self._stack.append(value)

    def _pop(self) -> Value:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise Refused(f"nothing is on the stack at byte {self._at}")
        return self._stack.pop()

    def _top(self) -> Value:
        value = self._pop()
        self._push(value)
        return value

    def _marked(self) -> list[Value]:
        if not self._marks:
            raise Refused(f"no mark is on the stack at byte {self._at}")
        mark = self._marks.pop()
        values, self._stack[mark:] = self._stack[mark:], []
        return values

    def _remember(self, key: int) -> None:
        self._memo[key] = self._top()

    def _recall(self, key: int) -> None:
        if key not in self._memo:
            raise Refused(f"the memo has no value {key}")
        self._push(self._memo[key])

    # Instructions with more than one line.

    def _name(self, module: str, name: str) -> None:
        full = f"{module}.{name}"
        if full not in self._listed:
            raise Refused(f"the name {full[:200]!r}, which is not one that a checkpoint needs")
        self._push(PickledName(full))

    def _line(self) -> str:
        end = self._data.find(b"\n", self._at, self._at + 300)
        if end < 0:
            raise Refused(f"a name at byte {self._at} without an end")
        line, self._at = self._data[self._at : end], end + 1
        return line.decode("utf-8", "replace")

    def global_(self) -> None:
        self._name(self._line(), self._line())

    def stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise Refused("a name that is no text")
        self._name(module, name)

    def call(self) -> None:
        """REDUCE, NEWOBJ: record the call."""
        args, of = self._pop(), self._pop()
        if not isinstance(of, PickledName) or not isinstance(args, tuple):
            raise Refused(f"a call of something that has no listed name, at byte {self._at}")
        items = PickledDict() if of.name in _DICTS else None
        if items is not None and args and not isinstance(args[0], PickledName):
            items.pairs += _pairs_of(args[0])
        self._push(PickledCall(of.name, args, items=items))

    def call_with_names(self) -> None:
        """NEWOBJ_EX."""
        names, args, of = self._pop(), self._pop(), self._pop()
        if not isinstance(of, PickledName) or not isinstance(args, tuple):
            raise Refused(f"a call of something that has no listed name, at byte {self._at}")
        self._push(PickledCall(of.name, (*args, names)))

    def build(self) -> None:
        state, target = self._pop(), self._top()
        if not isinstance(target, PickledCall):
            raise Refused(f"a state for something that is no object, at byte {self._at}")
        target.state = state

    def append(self, items: list[Value]) -> None:
        target = self._top()
        if not isinstance(target, list):
            raise Refused(f"items for something that is no list, at byte {self._at}")
        target += items

    def set_items(self, items: list[Value]) -> None:
        target = self._top()
        pairs = target.items if isinstance(target, PickledCall) else target
        if not isinstance(pairs, PickledDict) or len(items) % 2:
            raise Refused(f"pairs for something that is no dict, at byte {self._at}")
        pairs.pairs += zip(items[::2], items[1::2], strict=True)

    def long(self, size: int) -> None:
        count = self._number(size)
        if count > _MAX_LONG:
            raise Refused(f"a whole number of {count} bytes")
        self._push(int.from_bytes(self._take(count), "little", signed=True))

    def tuple_of(self, count: int) -> None:
        self._push(tuple(reversed([self._pop() for _ in range(count)])))

    def pop_any(self) -> None:
        """POP drops a value, or a mark that is on top."""
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._pop()

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def double(self) -> float:
        (number,) = struct.unpack(">d", self._take(8))
        return float(number)


def _pairs_of(value: Value) -> list[tuple[Value, Value]]:
    """Return the pairs of an argument of ``OrderedDict``: a dict, or a list of pairs (protocol 2)."""
    if isinstance(value, PickledDict):
        return list(value.pairs)
    pairs = []
    for pair in value if isinstance(value, (list, tuple)) else ():
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise Refused("an OrderedDict of something that is no pair")
        pairs.append((pair[0], pair[1]))
    return pairs


def _constant(value: Value) -> _Step:
    return lambda m: m._push(value)


def _skip(size: int) -> _Step:
    """Skip protocol and frame instructions, which do not change the content."""

    def step(m: PickleMachine) -> None:
        m._take(size)

    return step


_STEPS: dict[bytes, _Step] = {
    b"\x80": _skip(1),
    b"\x95": _skip(8),
    b"(": PickleMachine.mark,
    b"0": PickleMachine.pop_any,
    b"1": lambda m: m._marked().clear(),
    b"2": lambda m: m._push(m._top()),
    # constants and numbers
    b"N": _constant(None),
    b"\x88": _constant(True),
    b"\x89": _constant(False),
    b"J": lambda m: m._push(int.from_bytes(m._take(4), "little", signed=True)),
    b"K": lambda m: m._push(m._number(1)),
    b"M": lambda m: m._push(m._number(2)),
    b"\x8a": lambda m: m.long(1),
    b"\x8b": lambda m: m.long(4),
    b"G": lambda m: m._push(m.double()),
    # texts and bytes
    b"\x8c": lambda m: m._push(m._text(1)),
    b"X": lambda m: m._push(m._text(4)),
    b"\x8d": lambda m: m._push(m._text(8)),
    b"U": lambda m: m._push(m._text(1)),  # text of Python 2
    b"T": lambda m: m._push(m._text(4)),
    b"C": lambda m: m._push(m._take(m._number(1))),
    b"B": lambda m: m._push(m._take(m._number(4))),
    b"\x8e": lambda m: m._push(m._take(m._number(8))),
    b"\x96": lambda m: m._push(m._take(m._number(8))),
    # collections
    b"]": lambda m: m._push([]),
    b"}": lambda m: m._push(PickledDict()),
    b"\x8f": lambda m: m._push([]),  # a set, as a list
    b")": lambda m: m._push(()),
    b"\x85": lambda m: m.tuple_of(1),
    b"\x86": lambda m: m.tuple_of(2),
    b"\x87": lambda m: m.tuple_of(3),
    b"t": lambda m: m._push(tuple(m._marked())),
    b"l": lambda m: m._push(m._marked()),
    b"\x91": lambda m: m._push(m._marked()),
    b"a": lambda m: m.append([m._pop()]),
    b"e": lambda m: m.append(m._marked()),
    b"\x90": lambda m: m.append(m._marked()),
    b"s": lambda m: m.set_items([m._pop(), m._pop()][::-1]),
    b"u": lambda m: m.set_items(m._marked()),
    # the memo
    b"q": lambda m: m._remember(m._number(1)),
    b"r": lambda m: m._remember(m._number(4)),
    b"\x94": lambda m: m._remember(len(m._memo)),
    b"h": lambda m: m._recall(m._number(1)),
    b"j": lambda m: m._recall(m._number(4)),
    # names, and what would be called
    b"c": PickleMachine.global_,
    b"\x93": PickleMachine.stack_global,
    b"R": PickleMachine.call,
    b"\x81": PickleMachine.call,
    b"\x92": PickleMachine.call_with_names,
    b"b": PickleMachine.build,
    b"Q": lambda m: m._push(PickledId(m._pop())),
}
