"""TRL's data: a data set of the hub or a path, mixtures, and which tokens have loss."""

from __future__ import annotations

from pathlib import Path

from paceline.config.import_export.local_files import first_row
from paceline.config.import_export.verdicts import KeyReader, data_set
from paceline.core.json_types import Json, JsonObject, as_object

_NAMES = ("dataset_name", "dataset_config", "dataset_train_split", "dataset_test_split", "dataset_split")
#: of a data set of a mixture; ``columns`` picks some, of which the rows' own are recognised
_OF_ITEM = ("path", "id", "name", "config", "split", "fraction", "weight", "columns")
_KNOWN = ("messages", "text")  # TRL reads turns whatever the field says


def datasets(reader: KeyReader) -> None:
    """Decide where the rows come from and which of their tokens have loss."""
    mixture, path = _mixture(reader), reader.given.get("dataset_name")
    if mixture:
        reader.set("data.train", mixture, "datasets")
        reader.nothing(_NAMES, "the mixture names the data")
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
    if not reader.on("dataset_streaming"):
        reader.nothing("dataset_streaming", "rows are read as a whole, as here")
    if reader.facts["algorithm"] == "sft":
        _loss_on(reader)
    if reader.text("dataset_text_field") in _KNOWN and reader.is_given("dataset_text_field"):
        reader.nothing("dataset_text_field", "the column is recognised by its name")
    elif reader.is_given("dataset_text_field"):
        reader.mapped("dataset_text_field", ("data.train",))


def _one(reader: KeyReader, path: str, split: str) -> JsonObject:
    prompt, text = reader.given.get("dataset_prompt_column"), reader.given.get("dataset_text_field")
    columns: JsonObject = {"prompt": str(prompt)} if prompt else {}
    reader.mapped("dataset_prompt_column", ("data.train",)) if prompt else None
    if text and reader.text("dataset_text_field") not in _KNOWN:
        columns["text"] = str(text)
    config = reader.given.get("dataset_config")
    return data_set(path, name=config and str(config), split=split, columns=columns)


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
            sets.append(_of_mixture(item))
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


def _file(item: JsonObject) -> Json:
    """Return the one file of a loader (``path: json``), which is the data set here."""
    files = item.get("data_files")
    listed = files if isinstance(files, list) else [files]
    loader = item.get("path") in ("json", "csv", "parquet", "text")
    return listed[0] if loader and len(listed) == 1 and isinstance(listed[0], str) else None


def _unread(reader: KeyReader, path_of_set: str, item: JsonObject) -> None:
    """Say what a data set of a mixture has that none of ours can."""
    for key in item.keys() - {*_OF_ITEM, *(("data_files",) if _file(item) else ())}:
        if item[key] not in (None, "", [], {}):
            reader.lose(
                f"{path_of_set}.{key}", "a data set here has one path: list each of its files, or its folder"
            )


def _of_mixture(item: JsonObject) -> JsonObject:
    share, name = item.get("fraction", item.get("weight")), item.get("name", item.get("config"))
    return data_set(
        _file(item) or item.get("path", item.get("id")),
        name=name if name != "default" else None,
        split=item.get("split"),
        weight=share if isinstance(share, (int, float)) else None,
    )


def _loss_on(reader: KeyReader) -> None:
    """TRL puts loss on completions for rows of prompt and completion, else on every token."""
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
    completions = only is True or (only is None and {"prompt", "completion"} <= set(row))
    if only is None and path and not row:
        says = (
            f"rows of prompt and completion have loss on the completion alone: {path} is not here to be seen"
        )
        reader.differs("completion_only_loss", "data.train_on", "all", f"{says} (data.train_on: assistant)")
        return
    reader.set(
        "data.train_on",
        "assistant" if completions else "all",
        "completion_only_loss",
        "TRL puts loss on completions where rows have prompt and completion, else on every token",
    )
    reader.mapped(("completion_only_loss", "assistant_only_loss"), ("data.train_on",))
