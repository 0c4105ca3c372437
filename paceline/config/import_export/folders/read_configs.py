"""The YAML and JSON files of a folder: read once, and told apart by their keys."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from paceline.config.backend_files.detect import kind_of, program_of
from paceline.config.backend_files.json_text import json_lines, parse_json
from paceline.config.import_export.commands.other_jobs import refuse_other_file
from paceline.config.import_export.folders.list_files import FolderFile
from paceline.config.import_export.import_config import system_of
from paceline.config.schema import SECTIONS
from paceline.config.yaml_text.tree import parse_yaml
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject

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
