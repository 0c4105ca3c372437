"""Rotary embeddings whose frequencies depend on the sequence length. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paceline.core.json_types import Json

BY_LENGTH = frozenset({"dynamic", "longrope"})


def rope_kinds(config: Mapping[str, Json]) -> frozenset[str]:
    """Return the kinds of rotary scaling in a ``config.json``: one, or one per layer type.

    Old spellings included.
    """
    sections: list[Json] = [config.get("rope_parameters"), config.get("rope_scaling")]
    return frozenset(kind for one in sections if isinstance(one, Mapping) for kind in _kinds(one))


def by_length(config: Mapping[str, Json]) -> bool:
    """Whether rotary frequencies depend on the length of the document."""
    return bool(rope_kinds(config) & BY_LENGTH)


def _kinds(rope: Mapping[str, Json]) -> Iterator[str]:
    kind = rope.get("rope_type", rope.get("type"))
    if isinstance(kind, str):
        yield {"su": "longrope"}.get(kind, kind)
    for inner in rope.values():
        if isinstance(inner, Mapping):
            yield from _kinds(inner)
