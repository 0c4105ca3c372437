"""Swapping a module's class: its parameters, submodules and names stay, its forward changes."""

from __future__ import annotations

from functools import cache
from typing import Any


def replace_forward(fused: type, kind: type) -> type[Any]:
    """The class that computes as ``fused`` and falls back to ``kind``; one for all layers, so that torch.compile sees one type."""
    return _joined(fused.__name__, (fused, kind))


def replace_base(kind: type, base: type) -> type[Any]:
    """The class that computes as ``kind`` with ``base`` in place of its own base class."""
    return _joined(base.__name__, (kind, base))


@cache
def _joined(name: str, bases: tuple[type, ...]) -> type[Any]:
    return type(name, bases, {})
