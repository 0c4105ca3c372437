"""The head of a data set's README: which configurations it has, and which files belong to which split.

As ``datasets`` reads it (``configs:`` with ``data_files`` and ``data_dir``); what would change how a file is
read (``sep``, ``field``) is refused, as nothing here does it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from paceline.core.errors import DataError
from paceline.core.files import read_text
from paceline.core.json_types import Json, JsonObject
from paceline.data import codes

CARDS = ("README.md", ".huggingface.yaml")
_HEAD = re.compile(r"^(\s*---(?:\r\n|\r|\n))([\S\s]*?)((?:\r\n|\r|\n)---[ \t]*(\r\n|\n|$))")
_READ = {"config_name", "data_files", "data_dir", "default", "description", "version", "features"}
_SPLIT = re.compile(r"^\w+(\.\w+)*$")


@dataclass(frozen=True)
class FolderConfig:
    """One configuration: ``patterns`` of the files of each split (None: by the names of files), below
    ``folder``.
    """

    patterns: Mapping[str, list[str]] | None = None
    folder: str = ""


@dataclass(frozen=True)
class DatasetCard:
    """The configurations by name, and the one that is meant where none is named (None: one must be)."""

    where: str = ""
    configs: Mapping[str, FolderConfig] = field(default_factory=dict)
    default: str | None = None


def read_card(folder: Path) -> DatasetCard:
    """Return what the README of a folder says of its files. Raises DataError if that cannot be read."""
    content: dict[str, Json] = {}
    where = ""
    for file in (folder / name for name in CARDS):
        if not file.is_file():
            continue
        found = _content(file)
        where = str(file) if "configs" in found else where
        content |= found
    configs = content.get("configs") or []
    if not isinstance(configs, list):
        raise _wrong(where, "'configs' is no list", str(configs)[:60])
    named: dict[str, FolderConfig] = {}
    defaults: list[str] = []
    for config in configs:
        if not isinstance(config, dict) or not isinstance(config.get("config_name"), str):
            raise _wrong(where, "a configuration has no 'config_name'", str(config)[:60])
        name = str(config["config_name"])
        named[name] = _config(config, f"{where}: configs: {name}")
        if len(configs) == 1 or name == "default" or config.get("default"):
            defaults.append(name)
    if len(defaults) > 1:
        raise _wrong(where, "several configurations are the default", ", ".join(defaults))
    return DatasetCard(where, named, defaults[0] if defaults else _described(content, named))


def _content(file: Path) -> JsonObject:
    """Return the YAML of a card: the block between two lines of dashes, or a whole .yaml file."""
    try:
        text = read_text(file).removeprefix("\ufeff")
    except (OSError, ValueError) as error:
        raise _wrong(str(file), "the file cannot be read", str(error)[:100]) from error
    if file.suffix == ".md":
        head = _HEAD.search(text)
        text = head.group(2) if head else ""
    try:
        content = YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError, RecursionError) as error:
        what = "its first block is not YAML"
        raise _wrong(str(file), what, " ".join(str(error).split())[:160]) from error
    if content is not None and not isinstance(content, dict):
        raise _wrong(str(file), "its first block is no mapping", str(content)[:60])
    return content or {}


def _described(content: JsonObject, named: Mapping[str, FolderConfig]) -> str | None:
    """Return the only configuration that ``dataset_info`` describes, if it is one of those named."""
    infos = content.get("dataset_info")
    infos = infos if isinstance(infos, list) else [infos]
    names = [str(info.get("config_name", "default")) for info in infos if isinstance(info, dict)]
    return names[0] if len(names) == 1 and names[0] in named else None


def _config(config: JsonObject, where: str) -> FolderConfig:
    """Return one configuration. Raises DataError for what is not read here."""
    if unread := sorted(set(config) - _READ):
        what = "a configuration has options that change how its files are read, and that nothing here does"
        raise _wrong(where, what, ", ".join(unread), "write the rows as JSON lines, or name the files")
    directory, files = config.get("data_dir") or "", config.get("data_files")
    if not isinstance(directory, str):
        raise _wrong(where, "'data_dir' is no path", str(directory)[:60])
    if files is None:
        return FolderConfig(None, _inside(directory, where))
    split_of = [one for one in files if isinstance(one, dict)] if isinstance(files, list) else []
    if not split_of:
        return FolderConfig({"train": _patterns(files, where)}, _inside(directory, where))
    patterns: dict[str, list[str]] = {}
    for one in files if isinstance(files, list) else ():
        split = one.get("split") if isinstance(one, dict) else None
        if not isinstance(one, dict) or set(one) != {"split", "path"} or not isinstance(split, str):
            raise _wrong(where, "'data_files' is no list of splits and paths", str(one)[:60])
        if split in patterns or not _SPLIT.match(split):
            raise _wrong(where, "a split stands twice, or is no name", split[:60])
        patterns[split] = _patterns(one["path"], where)
    return FolderConfig(patterns, _inside(directory, where))


def _patterns(value: Json, where: str) -> list[str]:
    paths = value if isinstance(value, list) else [value]
    if not paths or not all(isinstance(path, str) and path for path in paths):
        raise _wrong(where, "a path of 'data_files' is no text", str(value)[:60])
    return [_inside(str(path), where) for path in paths]


def _inside(path: str, where: str) -> str:
    """Return a path without empty parts. Raises DataError for one that leads out of the folder."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith(("/", "~")) or ".." in parts or "://" in path or "\\" in path:
        raise _wrong(where, "a path leads out of the folder", path[:100], "name the files in the config")
    return "/".join(parts)


def _wrong(where: str, what: str, found: str, hint: str = "") -> DataError:
    hint = hint or "correct it, or name the files in place of the folder: data.train: [FILE, …]"
    return DataError(
        codes.DATA_CARD(f"what the folder's README says of its files: {what}", where, found, hint)
    )
