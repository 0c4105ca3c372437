"""axolotl's data sets: path and type, columns, templates and packing."""

from __future__ import annotations

from pathlib import Path

from paceline.config.import_export.verdicts import KeyReader, data_set
from paceline.core.json_types import Json, JsonObject, as_list, as_object

_CHAT = ("chat_template", "chat_template.default", "sharegpt")
_TEXT = ("completion", "pretrain", "text")
_SETS = {"datasets": "data.train", "pretraining_dataset": "data.train", "test_datasets": "data.eval"}
_NO_MATTER = ("ds_type", "preprocess_shards", "trust_remote_code")
_TURNS = ("message_field_role", "message_field_content", "message_property_mappings")
#: names of turns that are recognised here, by axolotl's roles
_TRAINED = ("train", "training", "trainable", "train_on_turn")  # as turns have them here
_ROLES: dict[str, tuple[str, ...]] = {
    "assistant": ("assistant", "gpt", "model"),
    "user": ("user", "human"),
    "system": ("system",),
    "tool": ("tool", "observation", "function"),
}
_FIELDS = {"role": ("role", "from"), "content": ("content", "value")}
_OF_ROWS = "a part of the rows: set max_rows of the data set"
#: switches of a data set → why they cannot be kept when they are on
_SWITCHES = {
    "drop_system_message": "system turns are kept: leave them out of the rows",
    "split_thinking": "thoughts are split by the chat template alone",
    "shards": _OF_ROWS,
    "shards_idx": _OF_ROWS,
}
_FORMATS = "its formats write text: a data.converter makes such rows, with model.chat_template: plain"
_CONVERSATIONS = {"chatml": "chatml", "llama3": "llama3", "llama-3": "llama3"}
_OWN_TEMPLATES = ("tokenizer_default", "tokenizer_default_fallback_chatml")


def datasets(reader: KeyReader) -> None:
    """Decide where rows come from, how they are written, and which tokens have loss."""
    for key, path in _SETS.items():
        listed = reader.given.get(key)
        if isinstance(listed, str) and key != "pretraining_dataset":
            reader.lose(key, f"axolotl takes a list of data sets: [{{path: {listed}, type: chat_template}}]")
            continue
        listed = [{"path": listed, "type": "pretrain"}] if isinstance(listed, str) and listed else listed
        if isinstance(listed, list) and listed:
            sets = [_one(reader, f"{key}.{n}", as_object(item), key) for n, item in enumerate(listed)]
            reader.set(path, sets, key)
            reader.mapped(key, (path,))


def _one(reader: KeyReader, path_of_set: str, item: JsonObject, outer: str) -> JsonObject:
    """Return one of our data sets; decides its keys. ``outer``: the key of the list that holds it."""
    files = as_list(item.get("data_files"))
    path, loader = item.get("path"), item.get("path") in ("json", "jsonl", "csv", "parquet", "text")
    if len(files) == 1 and (loader or Path(str(path)).is_dir()):
        path = files[0] if loader else f"{path}/{files[0]}"
    elif files:
        reader.lose(
            f"{path_of_set}.data_files",
            "a data set here has one path: list each of its files as a data set of its own",
        )
    keys = [f"{path_of_set}.{key}" for key in ("path", "name", "split", "data_files")]
    reader.mapped([key for key in keys if not reader.decided(key)], ("data.train",))
    reader.nothing([f"{path_of_set}.{key}" for key in _NO_MATTER], "as rows are read here")
    _turns(reader, path_of_set, item)
    kind = item.get("type")
    word = str(kind).partition(":")[0] if isinstance(kind, str) else ""
    if kind is None and outer == "pretraining_dataset":
        word = "pretrain"
    options = _options(reader, path_of_set, word, item)
    for key, value in item.items():
        if not reader.decided(inner := f"{path_of_set}.{key}"):
            reader.judge(
                inner,
                value in (None, False, "", [], {}),
                "off, as here",
                f"what axolotl does with {key} of a data set is not supported",
            )
    return data_set(path, name=item.get("name"), split=item.get("split"), **options)


def _options(reader: KeyReader, path_of_set: str, word: str, item: JsonObject) -> JsonObject:
    """Return the format and columns that the prompt strategy ``word`` means."""
    kind, key = item.get("type"), f"{path_of_set}.type"
    if reader.facts["algorithm"] != "sft":
        return _preference(reader, path_of_set, word, item)
    if word in _CHAT:
        return _chat(reader, path_of_set, item)
    if word in _TEXT:
        column = str(item.get("field") or item.get("text_column") or "text")
        reader.mapped([f"{path_of_set}.{name}" for name in ("type", "field", "text_column")], ("data.train",))
        return {"format": "text", "columns": {"text": column} if column != "text" else {}}
    if word == "alpaca":
        reader.lose(
            key, "axolotl's alpaca prompt is text with a preamble; here the chat template writes the turns"
        )
        return {"format": "alpaca"}
    if isinstance(kind, dict):  # the user's own strategy: text is put together by formats
        for inner in [key, *(name for name in reader.given if name.startswith(f"{key}."))]:
            reader.lose(inner, _FORMATS)
    elif word:
        reader.lose(key, f"the prompt strategy {word} is axolotl's; convert the rows to messages")
    return {}


def _turns(reader: KeyReader, path_of_set: str, item: JsonObject) -> None:
    """Which turns have loss, and what their keys and roles are called."""
    trained = item.get("roles_to_train", ["assistant"])
    roles = [str(role) for role in trained] if isinstance(trained, list) else [str(trained)]
    reader.judge(
        f"{path_of_set}.roles_to_train",
        bool(roles) and set(roles) <= set(_ROLES["assistant"]),
        "the assistant's turns have loss, as here",
        f"loss on turns of {', '.join(roles) or 'nobody'}: answers have it",
    )
    ends = "what ends an answer has loss"
    for key in ("train_on_eos", "train_on_eot"):
        value, lost = item.get(key), f"{item.get(key)}: here {ends} (turn)"
        reader.judge(f"{path_of_set}.{key}", value in (None, "turn"), f"{ends}, as here", lost)
    for key, why in _SWITCHES.items():
        reader.judge(f"{path_of_set}.{key}", not item.get(key), "off, as here", why)
    if item.get("message_field_training") in _TRAINED:
        reader.mapped([f"{path_of_set}.message_field_training"], ("data.train",))
    elif item.get("message_field_training"):
        reader.lose(
            f"{path_of_set}.message_field_training",
            f"{item['message_field_training']}: name the turns' field train",
        )
    fields = dict(as_object(item.get("message_property_mappings")))
    fields |= {key: item[f"message_field_{key}"] for key in _FIELDS if item.get(f"message_field_{key}")}
    wrong = [f"{key}: {name}" for key, name in fields.items() if name not in (key, *_FIELDS.get(key, ()))]
    for key in [f"{path_of_set}.{key}" for key in _TURNS if item.get(key)]:
        if wrong:
            reader.lose(key, f"keys of a turn are role or from, content or value; not {', '.join(wrong)}")
        else:
            reader.mapped(key, ("data.train",))
    names = [
        (role, str(n))
        for role, listed in as_object(item.get("roles")).items()
        for n in (listed if isinstance(listed, list) else [listed])
    ]
    unknown = [name for role, name in names if name != role and name not in _ROLES.get(role, ())]
    if unknown:
        reader.lose(f"{path_of_set}.roles", f"turns of {', '.join(unknown)}: a data.converter renames roles")


def _chat(reader: KeyReader, path_of_set: str, item: JsonObject) -> JsonObject:
    """Conversations under any column; the keys of a turn are recognised."""
    turns = str(item.get("field_messages") or "messages")
    names = as_object(item.get("message_property_mappings"))
    role = str(names.get("role") or item.get("message_field_role") or "")
    keys = [f"{path_of_set}.{k}" for k in ("type", "field_messages", "roles", "chat_template", "field")]
    keys += [
        k
        for k in reader.given
        if k.startswith((f"{path_of_set}.message_property_mappings.", f"{path_of_set}.roles."))
    ]
    reader.mapped([key for key in keys if not reader.decided(key)], ("data.train",))
    if item.get("conversation"):
        _conversation(reader, f"{path_of_set}.conversation", str(item["conversation"]))
    if item.get("chat_template") not in (None, *_OWN_TEMPLATES):
        reader.lose(f"{path_of_set}.chat_template", "one template for all data sets: set model.chat_template")
    if role == "from" or turns == "conversations" or str(item.get("type")).startswith("sharegpt"):
        return {"columns": {"conversations": turns}} if turns not in ("messages", "conversations") else {}
    return {"columns": {"messages": turns}} if turns not in ("messages", "conversations") else {}


def _conversation(reader: KeyReader, key: str, name: str) -> None:
    """FastChat's template of a sharegpt data set, as older axolotl has it: one of ours where we have it."""
    ours = _CONVERSATIONS.get(name)
    if ours and reader.text("chat_template") in ("", ours, *_OWN_TEMPLATES):
        reader.keep(key, "model.chat_template", ours)
    else:
        reader.lose(key, f"FastChat's own {name}; set model.chat_template to a file that writes it")


def _preference(reader: KeyReader, path_of_set: str, word: str, item: JsonObject) -> JsonObject:
    """Pairs under any columns."""
    strategy = as_object(item.get("type"))  # the user's own strategy: text is put together by formats
    if strategy:
        reader.lose(
            f"{path_of_set}.type",
            "its formats write text: a data.converter makes such rows, with model.chat_template: plain",
        )
        names = ("prompt", "chosen", "rejected", "completion", "label")
        columns: JsonObject = {
            name: strategy[f"field_{name}"]
            for name in names
            if strategy.get(f"field_{name}") not in (None, name)
        }
        return {"columns": columns} if columns else {}
    if word.startswith(("chat_template", "bradley_terry.chat_template")) or not word:
        reader.mapped([f"{path_of_set}.type"], ("data.train",))
    elif word.startswith("chatml"):
        reader.keep(f"{path_of_set}.type", "model.chat_template", "chatml")
    else:
        reader.lose(
            f"{path_of_set}.type",
            f"the prompt strategy {word} is axolotl's; rows of prompt, chosen and rejected are read",
        )
    fields = {"messages": "field_messages", "chosen": "field_chosen", "rejected": "field_rejected"}
    reader.mapped([f"{path_of_set}.{field}" for field in fields.values()], ("data.train",))
    columns = {
        ours: item[field]
        for ours, field in fields.items()
        if item.get(field) not in (None, ours, "conversations")
    }
    return {"columns": columns} if columns else {}


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
