"""The files of a folder that a training may use, their texts and contents; the others with the reason."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from paceline.config.backend_files.detect import kind_of, program_of
from paceline.config.backend_files.json_text import json_lines, parse_json
from paceline.config.import_export.commands.other_jobs import refuse_other_file
from paceline.config.import_export.import_config import system_of
from paceline.config.schema import SECTIONS
from paceline.config.yaml_text.read_file import MAX_BYTES
from paceline.config.yaml_text.tree import parse_yaml
from paceline.core.errors import ConfigError
from paceline.core.files import no_file, open_file
from paceline.core.json_types import Json, JsonObject

#: folders that hold no file of a person's own
_LEFT_OUT = frozenset(
    (
        *(".git", ".hg", ".svn", ".tox", ".cache", ".mypy_cache", ".ruff_cache", ".pytest_cache"),
        *("__pycache__", ".ipynb_checkpoints", "node_modules", "site-packages", "wandb", "mlruns"),
    )
)
_ENVIRONMENT = ("pyvenv.cfg", "conda-meta")
_CHECKPOINT = ("trainer_state.json", "manifest.json")
_MOST_ENTRIES, _MOST_TEXT, _DEEPEST = 50_000, 64 << 20, 24
_SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch", ".sub", ".zsh")
_CONFIGS = (".yaml", ".yml", ".json")
_MAKEFILE = re.compile(r"(GNU)?[Mm]akefile(\..+)?|.*\.mk")
_DOCKERFILE = re.compile(r"(?i)(Docker|Container)file(\..+)?|.*\.dockerfile")
_SHELL = re.compile(rb"#![^\n]*\b(ba|da|z|k)?sh\b")
_FIRST = 64  # bytes that tell a script without a suffix


@dataclass(frozen=True)
class FolderFile:
    """A file by its path in the folder; ``kind``: script, makefile, dockerfile, python, or config."""

    path: str
    kind: str
    text: str


@dataclass
class FolderFiles:
    """A folder's files. ``skipped``: path → why it was not read; ``others``: the number of unrelated
    files."""

    root: Path
    files: dict[str, FolderFile] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    others: int = 0

    def of(self, kind: str) -> list[FolderFile]:
        """Return the files of a kind in order of their paths."""
        return [file for _, file in sorted(self.files.items()) if file.kind == kind]


def list_folder(path: Path) -> FolderFiles:
    """Read a folder, or a single file. Follows no link out of the folder."""
    alone = not path.is_dir()
    listed = FolderFiles(path.parent if alone else path)
    budget = _MOST_TEXT
    for file in [path] if alone else _walk(listed):
        name = str(file.relative_to(listed.root))
        kind = _kind(file)
        why = _not_read(file, listed.root) if kind else ""
        if why or not kind:
            listed.skipped |= {name: why} if why else {}
            listed.others += not kind
            continue
        text = _text(file)
        if text is None or len(text) > budget:
            listed.skipped[name] = "no text in UTF-8" if text is None else "more text than is read at once"
            continue
        budget -= len(text)
        listed.files[name] = FolderFile(name, kind, text)
    return listed


def _walk(listed: FolderFiles) -> Iterator[Path]:
    """Yield the files of a folder in order, and note the folders that are not entered."""
    stack, entries = [listed.root], 0
    while stack:
        folder = stack.pop()
        try:
            inside = sorted(folder.iterdir())
        except OSError as error:
            listed.skipped[_shown(folder, listed)] = error.strerror or str(error)
            continue
        folders = []
        for path in inside:
            entries += 1
            if entries > _MOST_ENTRIES:
                listed.skipped[_shown(path, listed)] = (
                    f"and what follows: more than {_MOST_ENTRIES:,} entries"
                )
                return
            if not path.is_dir():
                yield path
            elif why := _not_entered(path, listed.root):
                listed.skipped[_shown(path, listed)] = why
            else:
                folders.append(path)
        stack += reversed(folders)


def _shown(path: Path, listed: FolderFiles) -> str:
    return f"{path.relative_to(listed.root)}{'/' * path.is_dir()}"


def _not_entered(folder: Path, root: Path) -> str:
    """Return why a folder is not entered; or empty."""
    if folder.is_symlink():
        return "a link to a folder"
    if folder.name in _LEFT_OUT:
        return "no files of a job"
    if any((folder / name).exists() for name in _ENVIRONMENT):
        return "an environment of Python"
    if any((folder / name).exists() for name in _CHECKPOINT):
        return "a checkpoint or a run"
    return "too deep" if len(folder.relative_to(root).parts) > _DEEPEST else ""


def _kind(file: Path) -> str:
    """Return what a file may be by its name, or by the first line of one without a suffix; else empty."""
    name = file.name
    if _MAKEFILE.fullmatch(name):
        return "makefile"
    if _DOCKERFILE.fullmatch(name):
        return "dockerfile"
    if file.suffix in _SCRIPTS:
        return "script"
    if file.suffix in _CONFIGS:
        return "config"
    if file.suffix == ".py":
        return "python"
    if file.suffix or no_file(file) or not os.access(file, os.R_OK):
        return ""
    try:
        with open_file(file) as stream:
            return "script" if _SHELL.match(stream.read(_FIRST)) else ""
    except OSError:
        return ""


def _not_read(file: Path, root: Path) -> str:
    """Return why a possibly related file is not read; or empty."""
    if special := no_file(file):
        return f"{special}, not a file"
    try:
        if file.is_symlink() and not file.resolve().is_relative_to(root.resolve()):
            return "a link that leaves the folder"
        size = file.stat().st_size
    except (OSError, RuntimeError) as error:
        return getattr(error, "strerror", None) or "a link in a circle"
    return "larger than 1 MiB" if size > MAX_BYTES else ""


def _text(file: Path) -> str | None:
    """Return a file's text; None for one that is no text."""
    try:
        with open_file(file) as stream:
            raw = stream.read(MAX_BYTES + 1)
        return None if b"\0" in raw else raw.decode("utf-8-sig").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError):
        return None


#: what a YAML needs to be parsed: a key by which a program's files are told apart, at the left or indented
_MARKS = re.compile(
    r"^[ \t]*[\"']?(model\w*|base_model|stage|finetuning_type|output_dir|dataset\w*|distributed_type"
    r"|compute_environment|zero_optimization|train_batch_size|learning_rate|trainer|pretrain|_component_"
    r"|actor_rollout_ref|rlhf_type|tuner_type|train_type|fsdp_config|export_dir|checkpoint_dir)[\"']?[ \t]*:",
    re.M,
)
_OF_HF = (
    "output_dir",
    "learning_rate",
    "per_device_train_batch_size",
    "num_train_epochs",
    "lr_scheduler_type",
)
#: a key of each entry of LLaMA-Factory's ``dataset_info.json``: where its rows are
_OF_ROWS = {"file_name", "hf_hub_url", "ms_hub_url", "script_url", "cloud_file_name"}
NOT_IMPORTED = "config of "  # before the name of a program whose files are not imported
NAMES = {
    "llamafactory": "LLaMA-Factory",
    "trl": "TRL",
    "axolotl": "axolotl",
    "swift": "ms-swift",
    "hf": "Transformers",
    "deepspeed": "DeepSpeed",
    "accelerate": "Accelerate",
}


class Configs:
    """The configs of a folder; ``unread``: file → why it could not be parsed."""

    def __init__(self) -> None:
        self._parsed: dict[str, tuple[JsonObject, dict[str, int]]] = {}
        self.unread: dict[str, str] = {}

    def read(self, file: FolderFile) -> tuple[JsonObject, dict[str, int]]:
        """Return a file's mapping and the line of each path; empty for one without, or not readable."""
        if file.path not in self._parsed:
            self._parsed[file.path] = self._read(file)
        return self._parsed[file.path]

    def _read(self, file: FolderFile) -> tuple[JsonObject, dict[str, int]]:
        data: Json = None
        lines: dict[str, int] = {}
        try:
            if file.path.endswith(".json"):
                if file.text.lstrip()[:1] == "{":
                    data, _ = parse_json(file.text, file.path, "config", lenient=True)
                    lines = json_lines(file.text)
            elif _MARKS.search(file.text):
                tree = parse_yaml(file.text, file.path)
                data, lines = (tree.data(), tree.lines()) if tree else (None, {})
        except ConfigError as error:
            first = error.diagnostics[0]
            self.unread[file.path] = f"{first.what} ({first.where.rpartition('/')[2]})"
        return (data, lines) if isinstance(data, dict) else ({}, {})


def kind_of_config(file: FolderFile, data: JsonObject) -> tuple[str, str]:
    """Return (the program whose training a file describes, what else it is); both empty for no part."""
    are_data_sets = all(isinstance(entry, dict) and _OF_ROWS & {*entry} for entry in data.values())
    if PurePosixPath(file.path).name == "dataset_info.json" or (data and are_data_sets):
        return "", f"data sets of LLaMA-Factory: {len(data)}"
    if not data:
        return "", ""
    system = system_of(data)
    if system in ("deepspeed", "accelerate"):
        return "", f"a file of {NAMES[system]} that no job here names"
    if kind_of(data) == "fsdp":
        return "", "settings of FSDP that no job here names"
    if system in ("llamafactory", None):
        try:
            refuse_other_file(data, file.path)
        except ConfigError as error:
            matches = error.diagnostics[0]
            return "", f"{matches.what}; {matches.hint}"
    if system == "hf" and sum(key in data for key in _OF_HF) < 2:
        system = None
    if system is not None:
        return system, ""
    if (program := program_of(data)) is not None:
        return "", f"{NOT_IMPORTED}{program.name}"
    ours = len({*SECTIONS} & {*data}) > 1 and {*data} <= {*SECTIONS, "schema_version", "extends"}
    return "", "a config of Paceline already" if ours else ""
