"""What two configs differ in: by resolved keys, so that spellings, order and files do not count."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.config.load import Loaded
from paceline.config.source import DEFAULTS, Source, shown
from paceline.core.json_types import Json, JsonObject


@dataclass(frozen=True)
class Difference:
    """A key with two values, and where each is set."""

    path: str
    values: tuple[Json, Json]
    places: tuple[str, str]


def differences(first: Loaded, second: Loaded) -> list[Difference]:
    """Return the keys whose values differ, in the order of the reference."""
    ours, theirs = leaves(first.config.to_json()), leaves(second.config.to_json())
    return [
        Difference(path, (ours.get(path), theirs.get(path)), (_place(first, path), _place(second, path)))
        for path in dict.fromkeys((*ours, *theirs))
        if ours.get(path) != theirs.get(path)
    ]


def as_text(found: list[Difference], names: tuple[str, str]) -> str:
    """Return two lines for each key, or one sentence."""
    if not found:
        return "no difference: both files come to the same config"
    lines: list[str] = []
    for item in found:
        lines.append(item.path)
        for sign, name, value, place in zip("-+", names, item.values, item.places, strict=True):
            where = f"default ({name})" if place == DEFAULTS else place
            lines.append(f"  {sign} {shown(item.path, value, 80):<30} {where}")
    return "\n".join(lines)


def as_json(found: list[Difference]) -> list[JsonObject]:
    """Return the differences as plain JSON types, secrets masked."""
    return [
        {"key": d.path, "values": [shown(d.path, value) for value in d.values], "places": list(d.places)}
        for d in found
    ]


def leaves(value: Json, path: str = "") -> dict[str, Json]:
    """Return every value by dotted path; lists and empty mappings are values."""
    if not isinstance(value, dict) or not value:
        return {path: value}
    found: dict[str, Json] = {}
    for key, inner in value.items():
        found |= leaves(inner, f"{path}.{key}" if path else str(key))
    return found


def _place(loaded: Loaded, path: str) -> str:
    while path and path not in loaded.provenance:
        path = path.rpartition(".")[0]
    return loaded.provenance.get(path, Source(DEFAULTS)).place()
