"""ms-swift's data sets: where rows come from, how long they are, and which tokens have loss."""

from __future__ import annotations

import re
from pathlib import Path

from paceline.config.import_export.argument_tables import table
from paceline.config.import_export.local_files import config_of, first_row
from paceline.config.import_export.verdicts import KeyReader
from paceline.core.json_types import Json, JsonObject, as_list, as_object

_NOT_READ = re.compile(r"video|movie|speech|audio|egoschema|tts|cinepile")
_ROLLOUTS, _TEXT_TASKS = ("grpo", "ppo", "gkd"), ("embedding", "reranker", "generative_reranker")
#: those whose rows have an answer and a worse one
_PAIRED = ("dpo", "orpo", "simpo", "cpo", "rm")
#: A file's column, as ms-swift is told to read it → our column
_COLUMNS = {"messages": "messages", "conversations": "messages", "query": "prompt", "response": "completion"}
_COLUMNS |= {"system": "system", "rejected_response": "rejected", "label": "label", "text": "text"}


def data(reader: KeyReader) -> None:
    """Decide which data sets are read."""
    columns, command = _columns(reader), str(reader.facts["job"])
    for key, path in (("dataset", "data.train"), ("val_dataset", "data.eval")):
        value = reader.given.get(key)
        listed = value if isinstance(value, list) else [value] if value else []
        if listed:
            sets = [each for item in listed for each in _sets(reader, key, str(item), command, columns)]
            reader.set(path, sets, key)
            if not reader.decided(key):
                says = "; ".join(str(text) for text in as_list(reader.facts.pop(f"{key} differs", [])))
                reader.differs(key, path, sets, says) if says else reader.keep(key, path, sets)
    names = [key for key in ("model_name", "model_author") if not reader.decided(key)]
    reader.nothing(names, "no data set has rows with {{NAME}} and {{AUTHOR}}")


def _sets(reader: KeyReader, key: str, name: str, command: str, columns: JsonObject) -> list[Json]:
    """Return ``hf::path:subset/subset#rows`` as our data sets, one a subset."""
    options: JsonObject = {"columns": columns} if columns else {}
    if any((base / name).exists() for base in (Path("."), Path(reader.result.file).parent)):
        return [_of_command(reader, {"path": name, **options}, command)]
    where = f"data.{'train' if key == 'dataset' else 'eval'}"
    _, _, name = name.rpartition("::")
    name, marked, rows = name.rpartition("#") if "#" in name else (name, "", "")
    name, _, subsets = name.partition(":")
    known = as_object(as_object(table("swift_templates")["data"]).get(name))
    # code of its own → the options with which the same rows are read here
    alike = as_object(table("swift_templates")["alike"])
    if marked and rows.isdecimal():
        options["max_rows"] = int(rows)
        says = f"#{rows}: ms-swift draws as many rows at random, here they are the first"
        _notes(reader, key, says)
    if known.get("images") and _NOT_READ.search(name.lower()):
        reader.lose(key, f"video and sound are not read: {name}")
    elif known.get("images") and (
        reader.text("rlhf_type") in _ROLLOUTS or reader.text("task_type") in _TEXT_TASKS
    ):
        reader.lose(key, f"images are not read in rollouts, embedding models and rerankers: {name}")
    elif (by := known.get("by")) in alike:
        options |= as_object(alike[str(by)])
    elif by:
        _notes(reader, key, f"ms-swift prepares the rows of {name} by code of its own ({by})")
    if name.rpartition("/")[2] == "self-cognition":
        options |= _of_a_model(reader, key, where, subsets)
        subsets = ""
    parts = as_list(known.get("parts")) if subsets == "all" else subsets.split("/") if subsets else [None]
    path = str(known.get("hf") or name)
    return [
        _of_command(reader, {"path": path, **({"name": part} if part else {}), **options}, command)
        for part in parts or ["all"]
    ]


def _notes(reader: KeyReader, key: str, says: str) -> None:
    """Note a difference of one of several data sets."""
    reader.facts[f"{key} differs"] = [*as_list(reader.facts.get(f"{key} differs")), says]


def _of_a_model(reader: KeyReader, key: str, where: str, subset: str) -> JsonObject:
    """Decide ``model_name`` and ``model_author``, which fill the rows of swift/self-cognition."""
    texts: JsonObject = {}
    for name in ("name", "author"):
        given = as_list(reader.given.get(f"model_{name}"))
        if given:
            texts[f"{{{{{name.upper()}}}}}"] = str(given[-1])
            reader.mapped(f"model_{name}", (where,))
        if len(set(map(str, given))) > 1:
            says = f"its Chinese rows have {given[0]} in ms-swift; here all have {given[-1]}"
            reader.differs(f"model_{name}", where, texts, says)
    if subset:
        says = "an empty thought before each answer" + (", and /no_think" if subset != "empty_think" else "")
        _notes(reader, key, f"swift/self-cognition:{subset} writes {says}, which here the chat template does")
    return {"replace": texts} if texts else {}


def _of_command(reader: KeyReader, data_set: JsonObject, command: str) -> Json:
    if command == "pt" and not reader.on("use_chat_template"):
        return data_set | _pretrained(reader, str(data_set["path"]))
    return data_set


def _pretrained(reader: KeyReader, name: str) -> JsonObject:
    """Decide the data of `swift pt`, which applies no chat template: a row is its text and the end of
    text."""
    row = first_row(name, Path(reader.result.file).parent)
    column = next(
        (
            key
            for key in ("text", "response", "content", "completion", "output")
            if isinstance(row.get(key), str)
        ),
        "",
    )
    turns = row.get("messages")
    if column:
        return {"format": "text"} | ({"columns": {"text": column}} if column != "text" else {})
    if turns is not None:
        reader.lose(
            "use_chat_template",
            "ms-swift joins the turns' texts without a template here: write them as rows of text",
        )
        return {}
    return {"format": "text"}


def _columns(reader: KeyReader) -> JsonObject:
    columns = reader.given.get("columns")
    if not isinstance(columns, dict) or not columns:
        return {}
    unknown = [str(theirs) for theirs in columns.values() if theirs not in _COLUMNS]
    if unknown:
        reader.lose("columns", f"columns for {', '.join(unknown)}: set columns of the data set")
        return {}
    reader.mapped(("columns", *[f"columns.{key}" for key in columns]), ("data.train",))
    names = {**_COLUMNS, "response": "chosen"} if reader.facts["word"] in _PAIRED else _COLUMNS
    return {names[str(theirs)]: key for key, theirs in columns.items() if names[str(theirs)] != key}


def loss_scale(reader: KeyReader) -> None:
    """Decide which tokens have loss, by the strategy in ``loss_scale``.

    Its part about empty thoughts belongs to the chat template. In `swift rlhf` only the last answer has loss
    by default.
    """
    strategy, *more = reader.text("loss_scale").split("+")
    if strategy not in ("default", "last_round", "all", ""):
        more, strategy = [strategy, *more], "default"
    if not strategy and reader.facts["job"] == "rlhf":
        strategy = "default" if reader.facts["word"] == "orpo" else "last_round"
    reader.facts["loss_scale"] = strategy
    reader.facts["weights"] = ", ".join(name for name in more if name not in ("ignore_empty_think", "base"))


def length(reader: KeyReader) -> None:
    """Decide ``max_length``, which limits a row; in rollouts only the prompt."""
    model_config = config_of(reader)
    written = reader.given.get("max_length")
    limit = written or model_config.get("max_position_embeddings")
    note = "" if written else "all positions of the model"
    if not isinstance(limit, int):
        says = "ms-swift's limit is all positions of the model (no config.json here): set data.max_length"
        reader.departs("max_length", says, unset=True)
    elif reader.facts["word"] in _ROLLOUTS:
        answer = completion_length(reader)
        reader.set("data.max_prompt_length", limit, "max_length", note)
        note = f"{limit} of the prompt ({note or 'max_length'}) and {answer} of the answer"
        reader.keep("max_length", "data.max_length", limit + answer, note)
    else:
        reader.keep("max_length", "data.max_length", limit, note)


def completion_length(reader: KeyReader) -> int:
    """Return the limit of generated answers; its older names win, as in ms-swift."""
    for key in ("response_length", "max_new_tokens", "max_completion_length"):
        value = reader.value(key)
        if isinstance(value, int) and value:
            return value
    return 512
