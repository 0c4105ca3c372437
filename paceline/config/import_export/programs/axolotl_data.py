"""axolotl's data sets: path and type, columns, templates and packing."""

from __future__ import annotations

from dataclasses import replace

from paceline.config.import_export.decide_keys import Code, decide
from paceline.config.import_export.programs.axolotl_prompts import (
    TEMPLATE,
    alpaca,
    end_of_text,
    marked_answers,
    user_defined,
)
from paceline.config.import_export.programs.axolotl_templates import formats_of
from paceline.config.import_export.verdicts import KeyReader, data_set, data_set_of
from paceline.config.sections.model import SPECIAL_TOKENS
from paceline.core.json_types import Json, JsonObject, as_list, as_object

_SETS = {"datasets": "data.train", "pretraining_dataset": "data.train", "test_datasets": "data.eval"}
_TURNS = ("message_field_role", "message_field_content", "message_property_mappings")
#: names of turns that are recognised here, by axolotl's roles
_ROLES: dict[str, tuple[str, ...]] = {
    "assistant": ("assistant", "gpt", "model"),
    "user": ("user", "human"),
    "system": ("system",),
    "tool": ("tool", "observation", "function"),
}
_FIELDS = {"role": ("role", "from"), "content": ("content", "value")}


def datasets(reader: KeyReader) -> None:
    """Decide where rows come from, how they are written, and which tokens have loss."""
    for key, path in _SETS.items():
        listed = reader.given.get(key)
        if isinstance(listed, str) and key != "pretraining_dataset":
            reader.lose(key, f"axolotl takes a list of data sets: [{{path: {listed}, type: chat_template}}]")
            continue
        sets: list[Json] = [data_set(listed, format="text")] if isinstance(listed, str) and listed else []
        if isinstance(listed, list):
            each = [_each_file(reader, key, n, as_object(item)) for n, item in enumerate(listed)]
            sets = [one for those in each for one in those]
        if sets:
            reader.set(path, sets, key)
            reader.mapped(key, (path,))
    if reader.facts.get("prompts"):
        given = [key for key in ("chat_template", "chat_template_jinja") if reader.is_given(key)]
        reader.nothing(given, "the data sets' own prompts write the rows")


def _each_file(reader: KeyReader, outer: str, number: int, item: JsonObject) -> list[Json]:
    """Return our data sets for an item of the list ``outer``: one for each of its files."""
    first, files = _one(reader, outer, number, item), as_list(item.get("data_files"))
    if len(files) < 2 or not str(first["path"]).endswith(str(files[0])):
        return [first]
    folder = str(first["path"]).removesuffix(str(files[0]))
    return [{**first, "path": f"{folder}{file}"} for file in files]


def _one(reader: KeyReader, outer: str, number: int, item: JsonObject) -> JsonObject:
    """Return one of our data sets; decides its keys. ``outer``: the key of the list that holds it."""
    inner = reader.inside(f"{outer}.{number}", item)
    prompts = as_object(reader.facts.get("prompts"))
    listed = reader.given.get("datasets")
    sets = [as_object(one) for one in listed] if isinstance(listed, list) else None
    all_drop = sets is not None and all(one.get("drop_system_message") for one in sets)
    inner.facts |= {
        "outer": outer,
        "template": reader.text("chat_template"),
        "prompts": prompts,
        "turns": any(str(one.get("type")).startswith(("chat_template", "sharegpt")) for one in sets or ()),
        "eos_token": end_of_text(reader),
        "has_formats": bool(formats_of(reader)) and all_drop,
    }
    decide(inner, "axolotl_data", CODE)
    for key in item:
        if not inner.decided(key):
            says = f"what axolotl does with {key} of a data set is not supported"
            inner.judge(key, item[key] in (None, False, "", [], {}), "off, as here", says)
    settings = inner.result.settings
    kept = {path: setting for path, setting in settings.items() if path.startswith("model.")}
    if TEMPLATE in kept:
        reader.facts["prompts"] = {**prompts, f"{outer}.{number}": kept[TEMPLATE].value}
    reader.result.settings |= {p: replace(s, key=f"{outer}.{number}.{s.key}") for p, s in kept.items()}
    return data_set_of(inner, settings["path"].value)


def _turn_keys(reader: KeyReader) -> None:
    """Decide the names of a turn's keys and roles."""
    fields = dict(as_object(reader.given.get("message_property_mappings")))
    names = {key: reader.given.get(f"message_field_{key}") for key in _FIELDS}
    fields |= {key: name for key, name in names.items() if name}
    wrong = [f"{key}: {name}" for key, name in fields.items() if name not in (key, *_FIELDS.get(key, ()))]
    for key in [key for key in _TURNS if reader.given.get(key)]:
        if wrong:
            reader.lose(key, f"keys of a turn are role or from, content or value; not {', '.join(wrong)}")
        else:
            reader.mapped(key, ("data.train",))
    unknown = [
        str(name)
        for role, listed in as_object(reader.given.get("roles")).items()
        for name in (listed if isinstance(listed, list) else [listed])
        if str(name) != role and str(name) not in _ROLES.get(role, ())
    ]
    if unknown:
        reader.lose("roles", f"turns of {', '.join(unknown)}: a data.converter renames roles")


def tokens(reader: KeyReader) -> None:
    """Decide the tokenizer's special tokens and the tokens that are added to it."""
    value, key = reader.given.get("tokens"), "special_tokens"
    if isinstance(value, list):
        reader.keep("tokens", "model.add_tokens", value)
    elif value:
        reader.lose("tokens", "axolotl takes a list of tokens to add")
    given: JsonObject = {}
    added = False
    for name, token in as_object(reader.given.get(key)).items():
        inner = f"{key}.{name}"
        if name == "additional_special_tokens" and isinstance(token, list):
            reader.keep(inner, "model.add_special_tokens", token)
            added = True
        elif token in (None, ""):
            reader.nothing(inner, "it has no value")
        elif name in SPECIAL_TOKENS and isinstance(token, str):
            given[name] = token
            reader.mapped(inner, ("model.special_tokens",))
        else:
            reader.lose(inner, f"special tokens are {', '.join(SPECIAL_TOKENS)}")
    if given:
        reader.set("model.special_tokens", given, key)
    if given or added or not reader.given.get(key):
        reader.mapped(key, ("model.special_tokens", "model.add_special_tokens"))
    else:
        reader.lose(key, f"it maps {', '.join(SPECIAL_TOKENS)} to tokens; none of its values does")


CODE: Code = {
    "turn_keys": _turn_keys,
    "alpaca": alpaca,
    "marked_answers": marked_answers,
    "user_defined": user_defined,
}
