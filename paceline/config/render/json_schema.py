"""The JSON schema of a config, with descriptions, for editors: completion, hover texts and unknown keys."""

from __future__ import annotations

from typing import get_args

from pydantic.fields import FieldInfo

from paceline.config.keys.aliases import ALIASES, SECTION_ALIASES
from paceline.config.keys.valid_keys import RECOGNISED
from paceline.config.migrations import KEY, newest
from paceline.config.schema import SECTIONS, item_model, nested_model, takes_mapping, words_of
from paceline.config.sections.types import Section
from paceline.core.json_types import Json, JsonObject

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_TYPES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
)
#: Every value may also be an expression of the environment, such as ${LR:-1e-4}
_ENVIRONMENT: JsonObject = {"type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}"}


def json_schema() -> JsonObject:
    """Return the schema of a whole file: sections, their keys and other spellings, the latter deprecated."""
    properties: JsonObject = {
        "extends": {
            "description": "Files below this one: a path, or a list of which later ones win.",
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        }
    }
    version = "The version of the config's schema that the file is written for; the newest when absent."
    properties[KEY] = {"description": version, "type": "integer", "minimum": 1, "maximum": newest()}
    for name, model in SECTIONS.items():
        section = _object(model)
        _spellings(name, section)
        short: list[Json] = [section, {"type": ["string", "array", "boolean", "null"]}]
        properties[name] = {"description": str(section["description"]), "anyOf": short}
    return {
        "$schema": _DRAFT,
        "title": "Paceline config",
        "type": "object",
        "properties": {
            **{key: {"deprecated": True} for key in (*ALIASES, *RECOGNISED) if "." not in key},
            **{key: value for name in SECTIONS for key, value in _keys(SECTIONS[name]).items()},
            **properties,
        },
        "patternProperties": {"^x-": {"description": "A block for anchors; not read itself."}},
        "additionalProperties": False,
    }


def _object(model: type[Section]) -> JsonObject:
    return {
        "type": "object",
        "description": " ".join((model.__doc__ or "").split()),
        "properties": _keys(model),
        "additionalProperties": False,
    }


def _keys(model: type[Section]) -> JsonObject:
    return {name: _field(info) for name, info in model.model_fields.items()}


def _spellings(name: str, section: JsonObject) -> None:
    """Add the other spellings that the section takes, deprecated in favour of the key they mean."""
    keys = section["properties"]
    assert isinstance(keys, dict)
    aliases = {k.partition(".")[2]: a for k, a in SECTION_ALIASES.items() if k.startswith(f"{name}.")}
    aliases |= {
        k: a
        for k, a in ALIASES.items()
        if "." not in k and (name == "training" or a.to.startswith(f"{name}."))
    }
    for key, alias in aliases.items():
        keys.setdefault(key, {"description": f"Another spelling of {alias.to}.", "deprecated": True})
    for key, recognised in RECOGNISED.items() if name == "training" else ():
        keys.setdefault(key, {"description": f"No effect here: {recognised.says}.", "deprecated": True})
    section["additionalProperties"] = name == "parallelism"


def _field(info: FieldInfo) -> JsonObject:
    schema: JsonObject = {"description": str(info.description)}
    default = None if info.is_required() else info.get_default(call_default_factory=False)
    if isinstance(default, (bool, int, float, str, dict)):
        schema["default"] = default
    return schema | {"anyOf": [*_kinds(info), _ENVIRONMENT]}


def _kinds(info: FieldInfo) -> list[Json]:
    """Return the schemas of the values that a field takes."""
    inner, item = nested_model(info), item_model(info)
    words = [word for word in words_of(info) if isinstance(word, str)]
    kinds: list[Json] = [{"enum": list(words)}] if words else []
    if inner is not None:
        kinds.append(_object(inner))
    if item is not None:
        kinds += [
            {"type": "array", "items": {"anyOf": [{"type": "string"}, _object(item)]}},
            {"type": "string"},
        ]
    if takes_mapping(info):
        kinds.append({"type": "object"})
    plain = (info.annotation, *get_args(info.annotation))
    kinds += [{"type": name} for kind, name in _TYPES if kind in plain and not words]
    if not kinds:
        kinds.append({"type": ["array", "string", "number", "boolean"]})
    return [*kinds, {"type": "null"}] if (type(None) in get_args(info.annotation)) else kinds
