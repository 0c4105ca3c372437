"""The files of one split of a folder: those that ``datasets.load_dataset(folder)`` reads, in its order.

The README's ``configs:`` decides (``card``); else the names ``data/NAME-00000-of-00001.*``, then folder
names, then file names. Paceline refuses a folder where ``datasets`` would read a file twice, leave out rows
of another type, or train on a test file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from paceline.core.errors import DataError
from paceline.core.files import read_text
from paceline.core.json_types import Json, JsonObject
from paceline.data import codes
from paceline.data.sources.file_kinds import COMPRESSED, SUFFIXES, kind_of, kinds_in

KEYWORDS: Mapping[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SEP = "[-._ 0-9]"
# The library's own patterns: {0} is a keyword, {1} what stands beside one
_FOLDERS = ("**/{0}/**", "**/{0}{1}*/**", "**/*{1}{0}/**", "**/*{1}{0}{1}*/**")
_FILES = ("**/{0}{1}*", "**/*{1}{0}{1}*")
# As push_to_hub names a split's files
_SHARD = re.compile(r"data/([^/]+)-\d{5}-of-\d{5}[^/]*\.[^/]*")
_SHARDS = "data/{}-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9]*.*"
# Files beside the rows, which the library passes over, too
_NO_DATA = frozenset(
    (
        "README.md",
        "config.json",
        "dataset_info.json",
        "dataset_infos.json",
        "dummy_data.zip",
        "dataset_dict.json",
    )
)
_BEFORE_TEXT = (".parquet", ".arrow", ".jsonl", ".json", ".csv")  # of as many files as .txt, these are read
_FAMILIES = {"jsonl": "json"}  # kinds of files that one split may mix
_ARCHIVES = (".zip", ".tar", ".tgz", ".7z", ".rar", ".lz4", *COMPRESSED)


def split_files(folder: Path, split: str, name: str | None) -> tuple[list[str], list[str]]:
    """Return the files of a split of a folder's configuration ``name`` in reading order, and those left out.

    Raises DataError.
    """
    inside = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    seen = [path for path in inside if not _hidden(path)]
    card = read_card(folder)
    config = _chosen(card, name, folder)
    paths = [path for path in inside if Path(path).name not in _NO_DATA]
    if config.folder:
        paths = [path for path in paths if path.startswith(f"{config.folder}/")]
    if not any(kind_of(Path(path)) for path in paths):
        raise DataError(
            codes.DATA_EMPTY_FOLDER(str(folder), ", ".join(seen[:8]) or "nothing", readable=readable())
        )
    patterns = config.patterns or _by_names(_below(paths, config.folder), folder)
    usual = split
    if split not in patterns:  # another word for it: ``dev`` is ``validation``
        usual = next((usual for usual, words in KEYWORDS.items() if split.lower() in words), split)
    if usual not in patterns:
        raise _no_split(folder, split, patterns, seen)
    files = _readable(folder, _matching(card, patterns[usual], paths, config.folder))
    if config.patterns is None:
        _check_names(folder, files, usual)
    if not files:
        raise _no_split(folder, split, {s: p for s, p in patterns.items() if s != usual}, seen)
    return files, [path for path in seen if path not in files]


def _matching(card: DatasetCard, patterns: Sequence[str], paths: Sequence[str], below: str) -> list[str]:
    """Return the files that each pattern matches, in order. Raises DataError where a file is not there."""
    files: list[str] = []
    for pattern in patterns:
        matching = [path for path in _below(paths, below) if _matches(path, pattern)]
        if not matching and not set(pattern) & set("*?["):
            raise DataError(
                codes.DATA_CARD(
                    "the folder's README names a file that is not there",
                    card.where,
                    pattern,
                    "download it, or name the files in place of the folder",
                )
            )
        files += [f"{below}/{path}".lstrip("/") for path in matching]
    return files


def _below(paths: Sequence[str], folder: str) -> list[str]:
    return [path.removeprefix(f"{folder}/") for path in paths] if folder else list(paths)


def _chosen(card: DatasetCard, name: str | None, folder: Path) -> FolderConfig:
    configs = card.configs or {"default": FolderConfig()}
    chosen = name or card.default or (None if card.configs else "default")
    if chosen is not None and chosen in configs:
        return configs[chosen]
    message = (
        f"the folder has no configuration '{chosen}'"
        if chosen
        else "the folder has several configurations, and none is the default"
    )
    names = f"configurations {', '.join(configs)}" + (
        "" if card.configs else " (there is no README with configs:)"
    )
    remedy = f"name: {next(iter(configs))} (next to path:)" if card.configs else "remove name:"
    raise DataError(codes.DATA_CONFIG_NAME(message, card.where or str(folder), names, remedy))


def _by_names(paths: Sequence[str], folder: Path) -> dict[str, list[str]]:
    """Return the patterns of each split, from the names of files and folders."""
    sharded = {match[1] for path in paths if (match := _SHARD.fullmatch(path))}
    if sharded:
        in_order = [*(split for split in KEYWORDS if split in sharded), *sorted(sharded - KEYWORDS.keys())]
        return {split: [_SHARDS.format(split)] for split in in_order}
    for bases in (_FOLDERS, _FILES):
        matching = {
            split: patterns
            for split, patterns in {
                split: [base.format(word, _SEP) for word in words for base in bases]
                for split, words in KEYWORDS.items()
            }.items()
            if any(_matches(path, pattern) for path in paths for pattern in patterns)
        }
        if matching:
            return matching
    return {"train": ["**"]}


def _matches(path: str, pattern: str) -> bool:
    """Whether a path matches a glob pattern; hidden files and folders only if the pattern says so."""
    return _hidden(path) == _hidden(pattern) and _match(path.split("/"), pattern.split("/"))


def _match(parts: list[str], pattern: list[str]) -> bool:
    if not pattern:
        return not parts
    if pattern == ["**"]:
        return bool(parts)
    if pattern[0] == "**":
        return any(_match(parts[start:], pattern[1:]) for start in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _match(parts[1:], pattern[1:])


def _hidden(path: str) -> int:
    *folders, name = path.split("/")
    return sum(part.startswith((".", "__")) for part in folders) + name.startswith(".")


def _readable(folder: Path, paths: Sequence[str]) -> list[str]:
    """Return the files with rows, all of one type. Raises DataError where it is unclear what was meant."""
    twice = [path for path, count in Counter(paths).items() if count > 1]
    if twice:
        raise _unclear(
            folder,
            "the same files match twice, and would be read twice",
            twice,
            "rename them (or correct the README)",
        )
    unclear = [path for path in paths if not _is_clear(Path(path))]
    if unclear:
        raise _unclear(
            folder,
            "files may hold rows, but cannot be read by their names",
            unclear,
            f"unpack, rename or remove them (read are {readable()})",
        )
    kinds = {path: _FAMILIES.get(kind, kind) for path in paths if (kind := kind_of(Path(path)))}
    count = Counter(kinds.values())
    others = [kind for kind in count if kind != "txt"]
    if len(others) > 1 or (others and _is_text_first(list(kinds))):
        listed = ", ".join(f"{number} of type {kind}" for kind, number in count.most_common())
        first = [next(path for path, kind in kinds.items() if kind == wanted) for wanted in count]
        raise _unclear(folder, f"the split has files of several types ({listed})", first, "")
    return [path for path, kind in kinds.items() if kind == (others or ["txt"])[0]]


def _is_text_first(paths: Sequence[str]) -> bool:
    """Whether ``datasets`` would read the .txt files among these, and leave out the others."""
    count = Counter(suffix for path in paths for suffix in Path(path.lower()).suffixes if suffix in SUFFIXES)
    texts = count.pop(".txt", 0)
    most = max(count.values())
    return texts > most or (texts == most and not any(count[suffix] == most for suffix in _BEFORE_TEXT))


def _is_clear(file: Path) -> bool:
    """Whether a name shows that a file has rows of one type, or none."""
    kind = kind_of(file)
    if kind is None:
        return not kinds_in(file.name) and file.suffix.lower() not in _ARCHIVES
    return {_FAMILIES.get(other, other) for other in kinds_in(file.name)} == {_FAMILIES.get(kind, kind)}


def readable() -> str:
    """Return the suffixes of files that can be read, as text."""
    return f"{', '.join(SUFFIXES)}, and text with {', '.join(COMPRESSED)} after it"


def _check_names(folder: Path, files: Sequence[str], split: str) -> None:
    """Raise DataError for files whose names belong to another split than the one requested."""
    words = {path: set(re.split(r"[-._ 0-9/]+", path.lower())) for path in files}
    splits_of = {
        path: sorted(
            other for other, names in KEYWORDS.items() if other != split and words[path] & set(names)
        )
        for path in (files if split in KEYWORDS else ())
    }
    if others := [path for path, splits in splits_of.items() if splits]:
        message = (
            f"files would be read as split '{split}', but their names say {', '.join(splits_of[others[0]])}"
        )
        raise _unclear(folder, message, others, "")


def _unclear(folder: Path, message: str, paths: Sequence[str], hint: str) -> DataError:
    files = ", ".join(str(folder / path) for path in paths[:2])
    remedy = hint or f"name the files in place of the folder: data.train: [{files}, …]"
    return DataError(codes.DATA_FILES_UNCLEAR(message, str(folder), shortened(paths), remedy))


def shortened(paths: Sequence[str]) -> str:
    """Return the first paths of many as text."""
    return ", ".join(paths[:8]) + (f" and {len(paths) - 8} more" if len(paths) > 8 else "")


def _no_split(folder: Path, split: str, patterns: Mapping[str, list[str]], seen: Sequence[str]) -> DataError:
    message = f"no file of the folder belongs to the split '{split}'"
    if not patterns:
        return DataError(codes.DATA_SPLIT_MISSING(message, str(folder), ", ".join(seen[:8])))
    splits = f"splits {', '.join(patterns)}; files {', '.join(seen[:8])}"
    remedy = f"split: {next(iter(patterns))} (next to path:), or name the files in place of the folder"
    return DataError(codes.DATA_SPLIT_MISSING(message, str(folder), splits, remedy))


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
    """The configurations by name, and the default one (None: the user must name one)."""

    where: str = ""
    configs: Mapping[str, FolderConfig] = field(default_factory=dict)
    default: str | None = None


def read_card(folder: Path) -> DatasetCard:
    """Return the configurations in a folder's README. Raises DataError if they cannot be read."""
    content: dict[str, Json] = {}
    where = ""
    for file in (folder / name for name in CARDS):
        if not file.is_file():
            continue
        part = _content(file)
        where = str(file) if "configs" in part else where
        content |= part
    configs = content.get("configs") or []
    if not isinstance(configs, list):
        raise _wrong(where, "'configs' is no list", str(configs)[:60])
    folder_configs: dict[str, FolderConfig] = {}
    defaults: list[str] = []
    for config in configs:
        if not isinstance(config, dict) or not isinstance(config.get("config_name"), str):
            raise _wrong(where, "a configuration has no 'config_name'", str(config)[:60])
        name = str(config["config_name"])
        folder_configs[name] = _config(config, f"{where}: configs: {name}")
        if len(configs) == 1 or name == "default" or config.get("default"):
            defaults.append(name)
    if len(defaults) > 1:
        raise _wrong(where, "several configurations are the default", ", ".join(defaults))
    return DatasetCard(
        where, folder_configs, defaults[0] if defaults else _described(content, folder_configs)
    )


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
        raise _wrong(str(file), "its first block is not YAML", " ".join(str(error).split())[:160]) from error
    if content is not None and not isinstance(content, dict):
        raise _wrong(str(file), "its first block is no mapping", str(content)[:60])
    return content or {}


def _described(content: JsonObject, folder_configs: Mapping[str, FolderConfig]) -> str | None:
    """Return the only configuration in ``dataset_info``, if it is in ``folder_configs``."""
    infos = content.get("dataset_info")
    infos = infos if isinstance(infos, list) else [infos]
    names = [str(info.get("config_name", "default")) for info in infos if isinstance(info, dict)]
    return names[0] if len(names) == 1 and names[0] in folder_configs else None


def _config(config: JsonObject, where: str) -> FolderConfig:
    """Return one configuration. Raises DataError for unsupported files."""
    if unread := sorted(set(config) - _READ):
        raise _wrong(
            where,
            "a configuration has options that change how its files are read, and that nothing here does",
            ", ".join(unread),
            "write the rows as JSON lines, or name the files",
        )
    directory, files = config.get("data_dir") or "", config.get("data_files")
    if not isinstance(directory, str):
        raise _wrong(where, "'data_dir' is no path", str(directory)[:60])
    if files is None:
        return FolderConfig(None, _inside(directory, where))
    split_of = [entry for entry in files if isinstance(entry, dict)] if isinstance(files, list) else []
    if not split_of:
        return FolderConfig({"train": _patterns(files, where)}, _inside(directory, where))
    patterns: dict[str, list[str]] = {}
    for entry in files if isinstance(files, list) else ():
        split = entry.get("split") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or set(entry) != {"split", "path"} or not isinstance(split, str):
            raise _wrong(where, "'data_files' is no list of splits and paths", str(entry)[:60])
        if split in patterns or not _SPLIT.match(split):
            raise _wrong(where, "a split stands twice, or is no name", split[:60])
        patterns[split] = _patterns(entry["path"], where)
    return FolderConfig(patterns, _inside(directory, where))


def _patterns(value: Json, where: str) -> list[str]:
    paths = value if isinstance(value, list) else [value]
    if not paths or not all(isinstance(path, str) and path for path in paths):
        raise _wrong(where, "a path of 'data_files' is no text", str(value)[:60])
    return [_inside(str(path), where) for path in paths]


def _inside(path: str, where: str) -> str:
    """Return a path without empty parts. Raises DataError for a path outside of the folder."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith(("/", "~")) or ".." in parts or "://" in path or "\\" in path:
        raise _wrong(where, "a path leads out of the folder", path[:100], "name the files in the config")
    return "/".join(parts)


def _wrong(where: str, message: str, value: str, remedy: str = "") -> DataError:
    remedy = remedy or "correct it, or name the files in place of the folder: data.train: [FILE, …]"
    return DataError(
        codes.DATA_CARD(f"what the folder's README says of its files: {message}", where, value, remedy)
    )
