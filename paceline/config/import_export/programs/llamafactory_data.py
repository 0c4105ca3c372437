"""LLaMA-Factory's data sets: names in ``dataset_info.json``, with their columns and formats."""

from __future__ import annotations

import re
from pathlib import Path

from paceline.config.backend_files.json_text import parse_json
from paceline.config.import_export.decide_keys import decide
from paceline.config.import_export.local_files import first_row
from paceline.config.import_export.verdicts import KeyReader, data_set_of, flat
from paceline.config.yaml_text.read_file import read_text
from paceline.config.yaml_text.scalars import resolve_plain
from paceline.core.json_types import Json, JsonObject, as_object

#: What LLaMA-Factory's repository names in data/dataset_info.json itself
_BUNDLED: dict[str, JsonObject] = {
    "identity": {"file_name": "identity.json"},
    "alpaca_en_demo": {"file_name": "alpaca_en_demo.json"},
    "alpaca_zh_demo": {"file_name": "alpaca_zh_demo.json"},
    "alpaca_en": {"hf_hub_url": "llamafactory/alpaca_en"},
    "alpaca_zh": {"hf_hub_url": "llamafactory/alpaca_zh"},
    "alpaca_gpt4_en": {"hf_hub_url": "llamafactory/alpaca_gpt4_en"},
    "glaive_toolcall_en_demo": {"file_name": "glaive_toolcall_en_demo.json", "formatting": "sharegpt"},
    "dpo_en_demo": {"file_name": "dpo_en_demo.json", "ranking": True, "formatting": "sharegpt"},
    "dpo_zh_demo": {"file_name": "dpo_zh_demo.json", "ranking": True, "formatting": "sharegpt"},
    "kto_en_demo": {"file_name": "kto_en_demo.json", "formatting": "sharegpt"},
    "mllm_demo": {
        "file_name": "mllm_demo.json",
        "formatting": "sharegpt",
        "columns": {"messages": "messages", "images": "images"},
    },
    "llava_1k_en": {"hf_hub_url": "BUAADreamer/llava-en-zh-2k", "subset": "en", "formatting": "sharegpt"},
    "llava_1k_zh": {"hf_hub_url": "BUAADreamer/llava-en-zh-2k", "subset": "zh", "formatting": "sharegpt"},
    "rlhf_v": {"hf_hub_url": "llamafactory/RLHF-V", "ranking": True, "formatting": "sharegpt"},
    "c4_demo": {"file_name": "c4_demo.jsonl", "columns": {"prompt": "text"}},
    "wiki_demo": {"file_name": "wiki_demo.txt", "columns": {"prompt": "text"}},
}
#: what the turns of ShareGPT's form are known by, there by tags
_TAGS = {
    "role_tag": ("from", "role"),
    "content_tag": ("value", "content"),
    "user_tag": ("human", "user"),
    "assistant_tag": ("gpt", "assistant"),
    "observation_tag": ("observation", "tool"),
    "function_tag": ("function_call",),
    "system_tag": ("system",),
}
_IMAGES = re.compile("mllm|llava|rlhf_v")
_NOT_READ = ("video", "audio")

#: Keys that name data sets, and ours.
SETS = (("dataset", "data.train"), ("eval_dataset", "data.eval"))


def datasets(reader: KeyReader) -> None:
    """Decide ``dataset``, ``eval_dataset`` and related keys."""
    info, stage = _info(reader), reader.text("stage")
    for key, path in SETS:
        names = reader.given.get(key)
        listed = [part.strip() for part in names.split(",")] if isinstance(names, str) else names
        if isinstance(listed, list) and listed:
            _named(reader, key, path, [str(name) for name in listed], info, stage)
    named = [path for key, path in SETS if reader.result.settings.get(path) is not None]
    if named:
        reader.mapped("dataset_dir", named)


def _named(reader: KeyReader, key: str, path: str, names: list[str], info: JsonObject, stage: str) -> None:
    sets: list[Json] = []
    unknown: list[str] = []
    lost: list[str] = []
    differs: list[str] = []
    limit = resolve_plain(str(reader.given.get("max_samples") or ""))
    folder = str(reader.value("dataset_dir") or "data")
    for name in names:
        entry = as_object(info.get(name)) or _BUNDLED.get(name)
        if entry is None:
            unknown.append(name)
            entry = {"file_name": name}
        data_set, reasons = _data_set(entry, folder, stage)
        lost += [f"{name}: {reason}" for reason in reasons]
        differs += [
            f"{name}: {reason}"
            for reason in _read_here_alone(entry, data_set, Path(reader.result.file).parent)
        ]
        if as_object(entry.get("columns")).get("images") or _IMAGES.search(name):
            reader.facts["image_sets"] = name
        drawn = entry.get("num_samples")
        if isinstance(drawn, int):
            differs.append(
                f"{name}: num_samples rows are drawn at random there, and are the first here; of fewer rows"
                " some are drawn twice there (weight: here)"
            )
        limits = [rows for rows in (drawn, limit) if isinstance(rows, int)]
        sets.append(data_set | ({"max_rows": min(limits)} if limits else {}))
    not_read = [name for name in names if any(word in name for word in _NOT_READ)]
    if not_read:
        lost.append(f"video and sound are not read: {', '.join(not_read)}")
    if unknown and info:
        lost.append(f"dataset_info.json does not name {', '.join(unknown)}: write the path of its rows")
    reader.set(path, sets, key)
    if lost:
        reader.lose(key, "; ".join(lost))
    elif differs:
        reader.differs(key, path, sets, "; ".join(differs))
    elif unknown:
        reader.keep(key, path, sets, f"dataset_info.json is not here: name the files of {', '.join(unknown)}")
    else:
        reader.keep(key, path, sets)
    if isinstance(limit, int):
        reader.mapped("max_samples", (path,))
    elif reader.is_given("max_samples"):
        reader.lose("max_samples", f"{limit} is no number of rows")


def _read_here_alone(entry: JsonObject, data_set: JsonObject, folder: Path) -> list[str]:
    """Return the columns that Paceline would read and LLaMA-Factory ignores, since ``columns`` omits them."""
    row, columns = first_row(str(data_set["path"]), folder), as_object(entry.get("columns"))
    return [
        f"the column {name} is read here; there not, as columns does not name it"
        for name in ("system", "history", "tools")
        if row.get(name) and name not in columns.values()
    ]


def _info(reader: KeyReader) -> JsonObject:
    """Return ``dataset_info.json`` of ``dataset_dir``, looked for from here and next to the file."""
    folder = str(reader.value("dataset_dir") or "data")
    for base in (Path("."), Path(reader.result.file).parent):
        file = base / folder / "dataset_info.json"
        if file.is_file():
            data, _ = parse_json(read_text(str(file)), str(file), "dataset_info.json")
            return as_object(data)
    return {}


def _data_set(entry: JsonObject, folder: str, stage: str) -> tuple[JsonObject, list[str]]:
    """Return our data set for an entry of ``dataset_info.json``, and the options that it cannot keep."""
    file, hub = entry.get("file_name"), entry.get("hf_hub_url") or entry.get("ms_hub_url")
    reader = KeyReader("LLaMA-Factory", "dataset_info.json", flat(entry), {}, {})
    reader.facts["stage"] = stage
    decide(reader, "llamafactory_data")
    reasons = [finding.says for finding in reader.result.findings.values()]
    reasons += [
        f"turns are known by {', '.join(_TAGS[tag])}, not {tag}: {value}"
        for tag, value in as_object(entry.get("tags")).items()
        if tag in _TAGS and value not in _TAGS[tag]
    ]
    return data_set_of(reader, str(hub) if hub and not file else str(Path(folder) / str(file))), reasons
