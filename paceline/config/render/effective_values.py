"""Show the effective values of a config: where each is set, and how two configs differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from paceline.config.load import Loaded
from paceline.config.schema import SECTIONS
from paceline.config.sections.types import Section
from paceline.config.source import DEFAULTS, LAYERS, Source, shown
from paceline.core.json_types import Json, JsonObject, leaves, nearest_key

if TYPE_CHECKING:
    from paceline.config.load import Loaded

#: What a field holds: JSON, a section, or a tuple of sections.
Value: TypeAlias = Json | Section | tuple[Section, ...]
_WIDTH = 100
_KEY_WIDTH = 33
_VALUE_WIDTH = 26


def render_show(loaded: Loaded, *, only_set: bool = False) -> str:
    """Return one line per key: name, value, layer and place; a wide value continues on the next line.

    ``only_set`` omits the defaults.
    """
    lines = [f"layers, later ones override earlier ones: {' < '.join(LAYERS)}"]
    for section in SECTIONS:
        part = getattr(loaded.config, section)
        rows = _rows(section, part, loaded, only_set) if part is not None else []
        if rows:
            lines += ["", f"{section}:", *rows]
    return "\n".join(lines)


def _rows(prefix: str, part: Section, loaded: Loaded, only_set: bool, indent: str = "  ") -> list[str]:
    rows: list[str] = []
    for name in type(part).model_fields:
        path = f"{prefix}.{name}"
        value = getattr(part, name)
        if isinstance(value, Section):
            inner = _rows(path, value, loaded, only_set, indent + "  ")
            rows += [f"{indent}{name}:", *inner] if inner else []
            continue
        source = loaded.provenance.get(path, Source(DEFAULTS))
        items = _items(path, value, loaded)
        if not only_set or source.layer != DEFAULTS or items:
            rows += [_row(f"{indent}{name}", path, value, source), *items]
    return rows


def _row(key: str, path: str, value: Value, source: Source) -> str:
    text = shown(path, _plain(value), _WIDTH - _KEY_WIDTH - 1)
    origin = source.layer
    if source.layer != DEFAULTS:
        origin = f"{source.layer}  {source.place() if source.file else source.text}"
    if len(text) <= _VALUE_WIDTH and _KEY_WIDTH + _VALUE_WIDTH + 3 + len(origin) <= _WIDTH:
        return f"{key:<{_KEY_WIDTH}} {text:<{_VALUE_WIDTH}}  {origin}"
    return f"{key:<{_KEY_WIDTH}} {text}\n{'':<{_KEY_WIDTH}}   <- {origin}"


def _items(path: str, value: Value, loaded: Loaded) -> list[str]:
    """Return the places that set items of a list one by one."""
    if not isinstance(value, tuple):
        return []
    inner = [source for key, source in loaded.provenance.items() if key.startswith(f"{path}.")]
    places = dict.fromkeys(f"{source.layer}  {source.text}" for source in inner)
    return [f"{'':<{_KEY_WIDTH}}   <- {origin}" for origin in places]


def _plain(value: Value) -> Json:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Section):
        set_ones = value.model_dump(exclude_defaults=True)
        return set_ones["path"] if list(set_ones) == ["path"] else set_ones
    return value


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


def as_text(listed: list[Difference], names: tuple[str, str]) -> str:
    """Return two lines for each key, or one sentence."""
    if not listed:
        return "no difference: both files come to the same config"
    lines: list[str] = []
    for item in listed:
        lines.append(item.path)
        for sign, name, value, origin in zip("-+", names, item.values, item.places, strict=True):
            where = f"default ({name})" if origin == DEFAULTS else origin
            lines.append(f"  {sign} {shown(item.path, value, 80):<30} {where}")
    return "\n".join(lines)


def as_json(listed: list[Difference]) -> list[JsonObject]:
    """Return the differences as plain JSON types, secrets masked."""
    return [
        {"key": d.path, "values": [shown(d.path, value) for value in d.values], "places": list(d.places)}
        for d in listed
    ]


def _place(loaded: Loaded, path: str) -> str:
    return loaded.provenance.get(nearest_key(loaded.provenance, path), Source(DEFAULTS)).place()
