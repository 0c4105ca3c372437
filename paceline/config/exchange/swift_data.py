"""ms-swift's data sets: where rows come from, how long they are, and which tokens have loss."""

from __future__ import annotations

from pathlib import Path

from paceline.config.exchange.reading import KeyReader
from paceline.config.exchange.rows import first_row
from paceline.config.exchange.swift_machine import config_of
from paceline.core.json_types import Json, JsonObject

_ROLLOUTS = ("grpo", "ppo", "gkd")
_TOO_LONG = {"delete": "skip", "right": "truncate"}
#: A file's column, as ms-swift is told to read it → our column
_COLUMNS = {"messages": "messages", "conversations": "messages", "query": "prompt", "response": "completion"}
_COLUMNS |= {"system": "system", "rejected_response": "rejected", "label": "label", "text": "text"}


def data(reading: KeyReader, command: str, word: str) -> None:
    """Decide the keys of the data; ``word``: the command, or the ``rlhf_type``."""
    columns = _columns(reading)
    for key, path in (("dataset", "data.train"), ("val_dataset", "data.eval")):
        value = reading.given.get(key)
        listed = value if isinstance(value, list) else [value] if value else []
        if listed:
            made = [_one(reading, key, str(item), command, columns) for item in listed]
            reading.set(path, made, key)
            if not reading.decided(key):
                reading.keep(key, path, made)
    if not reading.on("split_dataset_ratio") or reading.is_given("val_dataset"):
        reading.nothing("split_dataset_ratio", "no rows are held out, or val_dataset names others")
    elif (
        reading.text("eval_strategy") == "no"
        or reading.text("save_strategy") == "no"
        and not reading.is_given("eval_strategy")
    ):
        reading.nothing("split_dataset_ratio", "ms-swift holds nothing out where nothing is evaluated")
    else:
        reading.keep("split_dataset_ratio", "data.validation_split", reading.value("split_dataset_ratio"))
    _packing(reading)
    _loss(reading, command, word)
    _length(reading, word)
    reading.keep("strict", "data.on_bad_row", "refuse" if reading.on("strict") else "skip")
    for key in ("dataset_shuffle", "train_dataloader_shuffle"):
        if reading.value(key) is False:
            reading.lose(key, "rows are always permuted by seed")
        else:
            reading.nothing(key, "rows are permuted by seed")
    reading.nothing("val_dataset_shuffle", "an evaluation is a mean over all rows")
    memory = ("lazy_tokenize", "packing_num_proc", "load_from_cache_file", "shuffle_buffer_size")
    reading.nothing((*memory, "download_mode"), "how rows are prepared; they are the same")
    if not reading.is_given("interleave_prob"):
        reading.nothing("stopping_strategy", "data sets are concatenated")


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
        says = "ms-swift joins the turns' texts without a template here: write them as rows of text"
        reading.lose("use_chat_template", says)
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
    inner = [f"columns.{key}" for key in named]
    reading.mapped(("columns", *inner), ("data.train",))
    return {_COLUMNS[str(theirs)]: key for key, theirs in named.items()}


def _packing(reading: KeyReader) -> None:
    reading.keep("packing", "data.packing", reading.on("packing"))
    reading.nothing("padding_free", "padding never weighs anything")
    reading.nothing(
        "packing_strategy", "documents do not see each other in a packed row; only the bins differ"
    )
    length = reading.given.get("packing_length")
    if not reading.on("packing") or length in (None, reading.given.get("max_length")):
        reading.nothing("packing_length", "packing is off, or it is max_length")
    else:
        reading.lose("packing_length", "packed rows have data.max_length tokens, as documents")


def _loss(reading: KeyReader, command: str, word: str) -> None:
    """Which tokens have loss: SFT has the answers, pre-training all, pairs and rollouts the last answer."""
    scale, _, more = reading.text("loss_scale").partition("+")
    if more and more != "ignore_empty_think":
        scale = more
    if command == "rlhf":
        if scale in ("", "last_round") or (scale == "default" and word == "orpo"):
            reading.nothing("loss_scale", "the answer that is compared, or was generated, has loss")
        else:
            reading.lose("loss_scale", f"{scale} is not supported here: the compared answer has loss")
        return
    if scale in ("default", "all", ""):
        says = "" if command != "pt" else "`swift pt`: loss on every token"
        reading.keep("loss_scale", "data.train_on", "all" if scale == "all" else "assistant", says)
    else:
        reading.lose("loss_scale", f"{scale} is not supported: default (every answer) or all")
        reading.set("data.train_on", "assistant", "loss_scale")
    if command == "pt":
        reading.mapped("use_chat_template", ("data.train",))
    elif reading.given.get("use_chat_template") is False:
        reading.lose("use_chat_template", "rows without a template are rows of text (format: text)")
    elif not reading.decided("use_chat_template"):
        reading.nothing("use_chat_template", "as here")


def _length(reading: KeyReader, word: str) -> None:
    """``max_length`` limits a row; in rollouts the prompt alone."""
    own = config_of(reading)
    given = reading.given.get("max_length")
    limit = given or own.get("max_position_embeddings")
    note = "" if given else "all positions of the model"
    if not isinstance(limit, int):
        says = "ms-swift's limit is all positions of the model (no config.json here): set data.max_length"
        reading.lose("max_length", says)
    elif word in _ROLLOUTS:
        answer = completion_length(reading)
        note = f"{limit} of the prompt ({note or 'max_length'}) and {answer} of the answer"
        reading.keep("max_length", "data.max_length", limit + answer, note)
    else:
        reading.keep("max_length", "data.max_length", limit, note)
    strategy = reading.text("truncation_strategy") or ("left" if word in ("grpo",) else "delete")
    if strategy in _TOO_LONG:
        reading.keep("truncation_strategy", "data.on_too_long", _TOO_LONG[strategy])
    else:
        says = f"{strategy} is not supported; longer rows are left out (data.on_too_long: skip)"
        reading.set("data.on_too_long", "skip", "truncation_strategy")
        reading.lose("truncation_strategy", says)


def completion_length(reading: KeyReader) -> int:
    """Return the limit of generated answers; older names of it win, as in ms-swift."""
    for key in ("response_length", "max_new_tokens", "max_completion_length"):
        value = reading.value(key)
        if isinstance(value, int) and value:
            return value
    return 512
