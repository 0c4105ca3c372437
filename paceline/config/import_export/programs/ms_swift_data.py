"""ms-swift's data sets: where rows come from, how long they are, and which tokens have loss."""

from __future__ import annotations

from pathlib import Path

from paceline.config.import_export.local_files import config_of, first_row
from paceline.config.import_export.verdicts import KeyReader
from paceline.core.json_types import Json, JsonObject

_ROLLOUTS = ("grpo", "ppo", "gkd")
#: A file's column, as ms-swift is told to read it → our column
_COLUMNS = {"messages": "messages", "conversations": "messages", "query": "prompt", "response": "completion"}
_COLUMNS |= {"system": "system", "rejected_response": "rejected", "label": "label", "text": "text"}


def data(reading: KeyReader) -> None:
    """Decide which data sets are read."""
    columns, command = _columns(reading), str(reading.facts["command"])
    for key, path in (("dataset", "data.train"), ("val_dataset", "data.eval")):
        value = reading.given.get(key)
        listed = value if isinstance(value, list) else [value] if value else []
        if listed:
            made = [_one(reading, key, str(item), command, columns) for item in listed]
            reading.set(path, made, key)
            if not reading.decided(key):
                reading.keep(key, path, made)


def _one(reading: KeyReader, key: str, name: str, command: str, columns: JsonObject) -> Json:
    """``hf::path:subset#rows`` as one of our data sets."""
    found: JsonObject = {}
    here = [base / name for base in (Path("."), Path(reading.result.file).parent)]
    if not any(path.exists() for path in here):
        _, _, name = name.rpartition("::")
        name, marked, rows = name.rpartition("#") if "#" in name else (name, "", "")
        name, _, subset = name.partition(":")
        if marked and rows.isdecimal():
            found["max_rows"] = int(rows)
            reading.differs(
                key,
                f"data.{'train' if key == 'dataset' else 'eval'}",
                name,
                f"#{rows}: ms-swift draws as many rows at random; here they are the first",
            )
        if subset:
            found["name"] = subset
            if "/" in subset or subset == "all":
                reading.lose(key, f"several subsets of {name}: list each as a data set with its name")
    made: JsonObject = {"path": name, **found}
    if columns:
        made["columns"] = columns
    if command == "pt" and not reading.on("use_chat_template"):
        return made | _pretrained(reading, name)
    return made


def _pretrained(reading: KeyReader, name: str) -> JsonObject:
    """`swift pt` writes no chat template: rows of text (any name of an answer) are that text and its end."""
    row = first_row(name, Path(reading.result.file).parent)
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
        reading.lose(
            "use_chat_template",
            "ms-swift joins the turns' texts without a template here: write them as rows of text",
        )
        return {}
    return {"format": "text"}


def _columns(reading: KeyReader) -> JsonObject:
    named = reading.given.get("columns")
    if not isinstance(named, dict) or not named:
        return {}
    unknown = [str(theirs) for theirs in named.values() if theirs not in _COLUMNS]
    if unknown:
        reading.lose("columns", f"columns for {', '.join(unknown)}: set columns of the data set")
        return {}
    reading.mapped(("columns", *[f"columns.{key}" for key in named]), ("data.train",))
    return {_COLUMNS[str(theirs)]: key for key, theirs in named.items()}


def scale_of(reading: KeyReader) -> str:
    """Return which tokens have loss: ``loss_scale`` without what it says of empty thoughts."""
    scale, _, more = reading.text("loss_scale").partition("+")
    return more if more and more != "ignore_empty_think" else scale


def length(reading: KeyReader) -> None:
    """``max_length`` limits a row; in rollouts the prompt alone."""
    own = config_of(reading)
    given = reading.given.get("max_length")
    limit = given or own.get("max_position_embeddings")
    note = "" if given else "all positions of the model"
    if not isinstance(limit, int):
        reading.lose(
            "max_length",
            "ms-swift's limit is all positions of the model (no config.json here): set data.max_length",
        )
    elif reading.facts["word"] in _ROLLOUTS:
        answer = completion_length(reading)
        note = f"{limit} of the prompt ({note or 'max_length'}) and {answer} of the answer"
        reading.keep("max_length", "data.max_length", limit + answer, note)
    else:
        reading.keep("max_length", "data.max_length", limit, note)


def completion_length(reading: KeyReader) -> int:
    """Return the limit of generated answers; older names of it win, as in ms-swift."""
    for key in ("response_length", "max_new_tokens", "max_completion_length"):
        value = reading.value(key)
        if isinstance(value, int) and value:
            return value
    return 512
