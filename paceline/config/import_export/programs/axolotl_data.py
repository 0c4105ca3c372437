"""axolotl's data sets: path and type, columns, templates and packing."""

from __future__ import annotations

from dataclasses import replace

from paceline.config.import_export.decide_keys import Code, decide
from paceline.config.import_export.programs.axolotl_prompts import (
    TEMPLATE,
    alpaca,
    end_of_text,
    user_defined,
)
from paceline.config.import_export.verdicts import KeyReader, data_set, data_set_of
from paceline.core.json_types import Json, JsonObject, as_object

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
            sets = [_one(reader, key, n, as_object(item)) for n, item in enumerate(listed)]
        if sets:
            reader.set(path, sets, key)
            reader.mapped(key, (path,))
    if reader.facts.get("prompts"):
        given = [key for key in ("chat_template", "chat_template_jinja") if reader.is_given(key)]
        reader.nothing(given, "the data sets' own prompts write the rows")


def _one(reader: KeyReader, outer: str, number: int, item: JsonObject) -> JsonObject:
    """Return one of our data sets; decides its keys. ``outer``: the key of the list that holds it."""
    inner = reader.inside(f"{outer}.{number}", item)
    prompts = as_object(reader.facts.get("prompts"))
    inner.facts |= {
        "outer": outer,
        "template": reader.text("chat_template"),
        "prompts": prompts,
        "turns": any(str(word).startswith(("chat_template", "sharegpt")) for word in _types(reader)),
        "eos_token": end_of_text(reader),
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
    """Which keys and roles of turns are recognised under their names."""
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


def _types(reader: KeyReader) -> list[Json]:
    sets = reader.given.get("datasets")
    return [as_object(item).get("type") for item in sets] if isinstance(sets, list) else []


def _turns_by_template(reader: KeyReader) -> bool:
    """Whether every data set's turns are written by a chat template."""
    types = _types(reader)
    return bool(types) and all(isinstance(word, str) and word.startswith("chat_template") for word in types)


def tokens(reader: KeyReader) -> None:
    """Padding has no loss; other special tokens would change the text."""
    for outer in ("special_tokens", "tokens"):
        value = reader.given.get(outer)
        if outer == "tokens" and isinstance(value, list):
            reader.keep(outer, "model.add_tokens", value)
        names = as_object(value)
        for name, token in names.items():
            if name == "pad_token":
                reader.nothing(f"{outer}.{name}", "padding never weighs anything")
            elif name == "additional_special_tokens" and isinstance(token, list):
                reader.keep(f"{outer}.{name}", "model.add_special_tokens", token)
            elif name == "eos_token" and _turns_by_template(reader):
                reader.nothing(f"{outer}.{name}", "the token that ends a turn is read off the chat template")
            elif name == "eos_token" and reader.facts.get("prompts"):
                reader.mapped(f"{outer}.{name}", (TEMPLATE,), "it ends an answer, as the template writes it")
            elif name == "eos_token":
                reader.lose(
                    f"{outer}.{name}",
                    "the tokenizer's own end of text ends an answer; model.chat_template may write another",
                )
            elif token in ("<s>", "</s>", "<unk>"):
                reader.nothing(f"{outer}.{name}", "the tokenizer's own (Llama's and Mistral's)")
            else:
                reader.lose(f"{outer}.{name}", "the tokenizer's own special tokens are used")
        if names:
            inner = [reader.result.findings.get(f"{outer}.{name}") for name in names]
            bad: list[Json] = [f.key for f in inner if f is not None and f.verdict.value == "cannot be kept"]
            if bad:
                reader.lose(outer, f"the tokenizer's own special tokens are used: {', '.join(map(str, bad))}")
            elif "model.add_special_tokens" in reader.result.settings:
                reader.mapped(outer, ("model.add_special_tokens",))
            else:
                reader.nothing(outer, "each of them for its own reason")


CODE: Code = {"turn_keys": _turn_keys, "alpaca": alpaca, "user_defined": user_defined}
