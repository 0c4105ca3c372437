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


def data(reader: KeyReader) -> None:
    """Decide which data sets are read."""
    columns, command = _columns(reader), str(reader.facts["job"])
    for key, path in (("dataset", "data.train"), ("val_dataset", "data.eval")):
        value = reader.given.get(key)
        listed = value if isinstance(value, list) else [value] if value else []
        if listed:
            sets = [_one(reader, key, str(item), command, columns) for item in listed]
            reader.set(path, sets, key)
            if not reader.decided(key):
                reader.keep(key, path, sets)


def _one(reader: KeyReader, key: str, name: str, command: str, columns: JsonObject) -> Json:
    """``hf::path:subset#rows`` as one of our data sets."""
    options: JsonObject = {}
    here = [base / name for base in (Path("."), Path(reader.result.file).parent)]
    if not any(path.exists() for path in here):
        _, _, name = name.rpartition("::")
        name, marked, rows = name.rpartition("#") if "#" in name else (name, "", "")
        name, _, subset = name.partition(":")
        if marked and rows.isdecimal():
            options["max_rows"] = int(rows)
            reader.differs(
                key,
                f"data.{'train' if key == 'dataset' else 'eval'}",
                name,
                f"#{rows}: ms-swift draws as many rows at random; here they are the first",
            )
        if subset:
            options["name"] = subset
            if "/" in subset or subset == "all":
                reader.lose(key, f"several subsets of {name}: list each as a data set with its name")
    data_set: JsonObject = {"path": name, **options}
    if columns:
        data_set["columns"] = columns
    if command == "pt" and not reader.on("use_chat_template"):
        return data_set | _pretrained(reader, name)
    return data_set


def _pretrained(reader: KeyReader, name: str) -> JsonObject:
    """`swift pt` writes no chat template: rows of text (any name of an answer) are that text and its end."""
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
    return {_COLUMNS[str(theirs)]: key for key, theirs in columns.items()}


def loss_scale(reader: KeyReader) -> None:
    """Which tokens have loss: ``loss_scale`` without what it says of empty thoughts."""
    scale, _, more = reader.text("loss_scale").partition("+")
    reader.facts["loss_scale"] = more if more and more != "ignore_empty_think" else scale


def length(reader: KeyReader) -> None:
    """``max_length`` limits a row; in rollouts the prompt alone."""
    model_config = config_of(reader)
    written = reader.given.get("max_length")
    limit = written or model_config.get("max_position_embeddings")
    note = "" if written else "all positions of the model"
    if not isinstance(limit, int):
        reader.lose(
            "max_length",
            "ms-swift's limit is all positions of the model (no config.json here): set data.max_length",
        )
    elif reader.facts["word"] in _ROLLOUTS:
        answer = completion_length(reader)
        note = f"{limit} of the prompt ({note or 'max_length'}) and {answer} of the answer"
        reader.keep("max_length", "data.max_length", limit + answer, note)
    else:
        reader.keep("max_length", "data.max_length", limit, note)


def completion_length(reader: KeyReader) -> int:
    """Return the limit of generated answers; older names of it win, as in ms-swift."""
    for key in ("response_length", "max_new_tokens", "max_completion_length"):
        value = reader.value(key)
        if isinstance(value, int) and value:
            return value
    return 512
