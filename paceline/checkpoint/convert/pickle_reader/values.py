"""What a pickle says, as inert values: no class of it is looked up, no function is called. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

#: A value of a pickle. Only these types are ever made.
Value: TypeAlias = (
    "None | bool | int | float | str | bytes | list[Value] | tuple[Value, ...]"
    " | PickledDict | PickledName | PickledCall | PickledId"
)
Key: TypeAlias = str | int


class Refused(Exception):
    """A pickle or an archive that is not read; the text says what was found."""


@dataclass(frozen=True)
class PickledName:
    """A class or function by its listed name (``torch.float32``): a text, nothing else."""

    name: str


@dataclass(eq=False)
class PickledCall:
    """What would be ``name(*args)``, then given ``state`` and items: recorded, not called."""

    name: str
    args: tuple[Value, ...] = ()
    state: Value = None
    items: PickledDict | None = None


@dataclass(frozen=True)
class PickledId:
    """A persistent id: in a file of torch, what says which storage a tensor lies in."""

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


def as_whole(value: Value, most: int = 1 << 53) -> int:
    """Return a whole number from 0 up to ``most``. Raises Refused."""
    if type(value) is int and 0 <= value <= most:
        return value
    raise Refused(f"{str(value)[:40]!r} in place of a whole number from 0 to {most}")


def as_shape(value: Value) -> tuple[int, ...]:
    """Return a shape (or strides, or offsets). Raises Refused."""
    sizes = as_list(value)
    if len(sizes) > 16:
        raise Refused(f"a shape of {len(sizes)} dimensions")
    return tuple(as_whole(n) for n in sizes)
