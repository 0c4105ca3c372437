"""Change a module's class: its parameters, submodules and names stay, its forward changes."""

from __future__ import annotations

from functools import cache
from typing import TypeVar

T = TypeVar("T")


def replace_forward(fused: type[T], kind: type) -> type[T]:
    """Return the class that computes as ``fused`` and falls back to ``kind``; cached, so that torch.compile
    sees one type for all layers.
    """
    return _joined(fused.__name__, (fused, kind))


def replace_base(kind: type[T], base: type) -> type[T]:
    """Return the class that computes as ``kind`` with ``base`` in place of its own base class."""
    return _joined(base.__name__, (kind, base))


def own_class(kind: type, front: type) -> type:
    """Return the class that ``replace_forward`` put ``front`` before, also where others lie on top; ``kind``
    itself if it has none.
    """
    kinds = kind.__mro__
    return kinds[kinds.index(front) + 1] if front in kinds else kind


@cache
def _joined(name: str, bases: tuple[type, ...]) -> type:
    return type(name, bases, {})
