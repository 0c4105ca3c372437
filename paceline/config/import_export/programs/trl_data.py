"""TRL's data: a data set of the hub or a path, mixtures, and which tokens have loss."""

from __future__ import annotations

import re
from pathlib import Path

from paceline.config.import_export.local_files import first_row, row_count
from paceline.config.import_export.verdicts import KeyReader, data_set
from paceline.core.json_types import Json, JsonObject, as_object

_NAMES = ("dataset_name", "dataset_config", "dataset_train_split", "dataset_test_split", "dataset_split")
#: of a data set of a mixture; ``columns`` picks some, of which the rows' own are recognised
_OF_ITEM = ("path", "id", "name", "config", "split", "fraction", "weight", "columns", "data_files")
_LOADERS = ("json", "csv", "parquet", "text", "arrow")
_KNOWN = ("messages", "text")  # TRL reads turns whatever the field says


def datasets(reader: KeyReader) -> None:
    """Decide where the rows come from and which of their tokens have loss."""
    mixture, path = _mixture(reader), reader.given.get("dataset_name")
    if mixture:
        _set_mixture(reader, mixture)
        reader.nothing([name for name in _NAMES if not reader.decided(name)], "the mixture names the data")
    elif isinstance(path, str):
        split = "dataset_train_split" if reader.is_given("dataset_train_split") else "dataset_split"
        reader.set("data.train", [_one(reader, path, str(reader.value(split) or "train"))], "dataset_name")
        reader.mapped([name for name in _NAMES if name != "dataset_test_split"], ("data.train",))
        strategy, older = reader.text("eval_strategy"), reader.text("evaluation_strategy")
        if strategy not in ("", "no", "false") or older not in ("", "no"):
            test = _one(reader, path, str(reader.value("dataset_test_split") or "test"))
            reader.set("data.eval", [test], "dataset_test_split")
            reader.mapped("dataset_test_split", ("data.eval",))
        else:
            reader.nothing("dataset_test_split", "nothing is evaluated: eval_strategy is no")
    else:
        reader.nothing(_NAMES, "no data set is named")
    for key in ("dataset_streaming", "streaming"):
        if reader.on(key) and reader.is_given(key):
            says = "a stream's rows come in their order there; here they are permuted by the seed"
            reader.differs(key, "data.train", reader.result.settings["data.train"].value, says)
        else:
            reader.nothing(key, "rows are read as a whole, as here")
    if reader.facts["algorithm"] == "sft":
        _loss_on(reader)
    if reader.text("dataset_text_field") in _KNOWN and reader.is_given("dataset_text_field"):
        reader.nothing("dataset_text_field", "the column is recognised by its name")
    elif reader.is_given("dataset_text_field"):
        reader.mapped("dataset_text_field", ("data.train",))


#: ``train[:1000]``: the first rows of a split
_FIRST_ROWS = re.compile(r"(\w+)\[:(\d+)\]")


def _part(reader: KeyReader, key: str, split: str) -> JsonObject:
    """Return the split, and the number of its first rows; other slices are lost."""
    first = _FIRST_ROWS.fullmatch(split)
    if first:
        return {"split": first[1], "max_rows": int(first[2])}
    if "[" in split or "+" in split:
        reader.lose(key, f"{split}: a part of a split is its first rows here (max_rows)")
    return {"split": re.split(r"[\[+]", split)[0]}


def _set_mixture(reader: KeyReader, mixture: list[Json]) -> None:
    """Set the data sets; TRL's ``fraction`` becomes a number of first rows."""
    key = "datasets" if "datasets" in reader.given else "dataset_mixture"
    items = [as_object(item) for item in mixture]
    shares = [item.pop("fraction", None) for item in items]
    plain = [share for share in shares if isinstance(share, (int, float)) and share > 0]
    reader.set("data.train", mixture, key)
    if len(items) < 2 or len(plain) < len(items):
        return
    counts = [row_count(str(item["path"]), Path(reader.result.file).parent) for item in items]
    known = [count for count in counts if count is not None]
    if len(known) == len(items):
        total = min(count * sum(plain) / share for count, share in zip(known, plain, strict=True))
        for item, share in zip(items, plain, strict=True):
            item["max_rows"] = round(share / sum(plain) * total)
        note = "the first rows of each, as many as TRL takes for these shares"
        reader.keep(key, "data.train", list[Json](items), note)
    else:
        says = "TRL takes the first rows of each that give these shares; the files are not here to be counted"
        reader.differs(key, "data.train", list[Json](items), f"{says}: set max_rows of each")


def _one(reader: KeyReader, path: str, split: str) -> JsonObject:
    prompt, text = reader.given.get("dataset_prompt_column"), reader.given.get("dataset_text_field")
    columns: JsonObject = {"prompt": str(prompt)} if prompt else {}
    reader.mapped("dataset_prompt_column", ("data.train",)) if prompt else None
    if text and reader.text("dataset_text_field") not in _KNOWN:
        columns["text"] = str(text)
    config, limit = reader.given.get("dataset_config"), reader.given.get("max_rows")
    reader.mapped("max_rows", ("data.train",)) if limit else None
    part = {"max_rows": limit, **_part(reader, "dataset_train_split", split)}
    return data_set(path, name=config and str(config), columns=columns, **part)


def _mixture(reader: KeyReader) -> list[Json]:
    """Return the data sets of ``datasets``, ``dataset_mixture`` or ``dataset_mixer``; decides these keys."""
    outer = reader.given.get("dataset_mixture")
    inner: JsonObject = dict(outer) if isinstance(outer, dict) else {}
    listed = inner.get("datasets") if inner else reader.given.get("datasets")
    top = "dataset_mixture" if inner else "datasets"
    sets: list[Json] = []
    inside = "dataset_mixture.datasets" if inner else "datasets"
    for number, item in enumerate(listed if isinstance(listed, list) else []):
        if isinstance(item, dict):
            sets += _of_mixture(reader, f"{inside}.{number}", item)
            _unread(reader, f"{inside}.{number}", item)
    mixer = reader.given.get("dataset_mixer")
    for path, share in mixer.items() if isinstance(mixer, dict) else ():
        if isinstance(share, (int, float)) and share > 1:
            sets.append({"path": path, "max_rows": int(share)})
        else:
            sets.append({"path": path, "weight": share})
    size = inner.get("test_split_size", reader.given.get("test_split_size"))
    if size and sets:
        reader.set("data.validation_split", size, top)
    if sets:
        keys = [
            key
            for key in reader.given
            if key.split(".")[0].split("[")[0] in (top, "dataset_mixer", "test_split_size")
            and not reader.decided(key)
        ]
        reader.mapped(keys, ("data.train",))
        reader.nothing(("dataset_mix_dir", "dataset_splits"), "the mixture names the data")
    return sets


def _files(item: JsonObject) -> list[str]:
    """Return the files of a loader (``path: json``), each of which is a data set here."""
    files = item.get("data_files")
    if isinstance(files, dict):  # by split
        files = files.get(str(item.get("split") or "train"))
    listed = files if isinstance(files, list) else [files]
    folder = item.get("data_dir")
    if item.get("path") not in _LOADERS:
        return []
    if not files and isinstance(folder, str):
        return [folder]
    return [str(file) for file in listed if isinstance(file, str)]


def _unread(reader: KeyReader, path_of_set: str, item: JsonObject) -> None:
    """Report the options of a mixture's data set that ours lack."""
    read = (*_OF_ITEM, "data_dir") if _files(item) else _OF_ITEM[:-1]
    for key in item.keys() - set(read):
        if item[key] not in (None, "", [], {}):
            says = "a data set here has one path: list each of its files, or its folder"
            reader.lose(f"{path_of_set}.{key}", says)


def _of_mixture(reader: KeyReader, path_of_set: str, item: JsonObject) -> list[Json]:
    share, name = item.get("weight"), item.get("name", item.get("config"))
    part = _part(reader, f"{path_of_set}.split", str(item.get("split") or "train"))
    files: list[Json] = list(_files(item))
    found: list[Json] = []
    for path in files or [item.get("path", item.get("id"))]:
        made = data_set(
            path,
            name=name if name != "default" else None,
            weight=share if isinstance(share, (int, float)) else None,
            **({**part, "split": None} if files else part),
        )
        found.append(made | ({"fraction": item["fraction"]} if item.get("fraction") is not None else {}))
    return found


def _loss_on(reader: KeyReader) -> None:
    """Decide the loss mask: TRL puts loss on completions if rows have a prompt, else on every token."""
    if reader.on("assistant_only_loss"):
        reader.keep("assistant_only_loss", "data.train_on", "assistant")
        reader.nothing("completion_only_loss", "assistant_only_loss is on")
        return
    only = reader.given.get("completion_only_loss")
    train = reader.result.settings.get("data.train")
    listed = train.value if train is not None and isinstance(train.value, list) else []
    path, folder = (
        str(as_object(listed[0]).get("path") or "") if listed else "",
        Path(reader.result.file).parent,
    )
    row = first_row(path, folder) if path else {}
    apart = {"prompt", "completion"} <= set(row)
    completions = only is True or (only is None and apart)
    reader.mapped("assistant_only_loss", ("data.train_on",))
    if (completions or only is None) and path and (not row or isinstance(row.get("completion"), list)):
        says = "of rows with a completion apart TRL learns all turns, also a user's,"
        says += " and what is written after them"
        value = "completion" if apart or not row else "all"
        reader.differs("completion_only_loss", "data.train_on", value, says)
        return
    reader.set(
        "data.train_on",
        "assistant" if completions else "all",
        "completion_only_loss",
        "TRL puts loss on completions where rows have prompt and completion, else on every token",
    )
    reader.mapped("completion_only_loss", ("data.train_on",))
