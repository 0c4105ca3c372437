"""Which rotary embeddings follow the length of what they read. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

BY_LENGTH = frozenset({"dynamic", "longrope"})


def rope_kinds(config: Mapping[str, Any]) -> frozenset[str]:
    """The kinds of rotary scaling that a ``config.json`` asks for: one, or one a kind of layers; in old spellings too."""
    sections: list[Any] = [config.get("rope_parameters"), config.get("rope_scaling")]
    return frozenset(kind for one in sections if isinstance(one, Mapping) for kind in _kinds(one))


def by_length(config: Mapping[str, Any]) -> bool:
    """Whether any of them chooses its frequencies by the length of the document."""
    return bool(rope_kinds(config) & BY_LENGTH)


def _kinds(rope: Mapping[str, Any]) -> Iterator[str]:
    kind = rope.get("rope_type", rope.get("type"))
    if isinstance(kind, str):
        yield {"su": "longrope"}.get(kind, kind)
    for inner in rope.values():
        if isinstance(inner, Mapping):
            yield from _kinds(inner)
