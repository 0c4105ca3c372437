"""Export a config of ours to another training system, or to DeepSpeed or Accelerate.

Each effective value is written under that system's name, except its defaults. A training system's file is
then imported again: keys that come back with another value are listed as not kept.

DeepSpeed's and Accelerate's files: how the job is distributed.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from paceline.config import codes
from paceline.config.import_export.argument_tables import defaults
from paceline.config.import_export.import_config import import_data
from paceline.config.import_export.programs.axolotl import axolotl_defaults
from paceline.config.import_export.programs.ms_swift import swift_defaults
from paceline.config.import_export.programs.trl import trl_defaults
from paceline.config.import_export.targets import axolotl, llamafactory, swift, trl
from paceline.config.import_export.targets.given import Given, form_of
from paceline.config.import_export.targets.names import (
    ALGORITHMS_OF,
    ALWAYS,
    NAMES,
    OPTIONS_OF,
    ROLLOUT_OF_TRL,
    WORDS,
)
from paceline.config.import_export.write_yaml import accepted, scalar
from paceline.config.keys.valid_keys import same
from paceline.config.load import Loaded, load_config
from paceline.config.schema import Config, field_of, nested_model
from paceline.config.sections.data import Dataset
from paceline.config.source import shown
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.core.plugins.tables import STRATEGIES

# FSDP shards as ZeRO-3 does, ddp not at all
_STAGES = {"zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3, "ddp": 0, "zero_redundancy": 1}


def deepspeed_json(config: Config) -> JsonObject:
    """Return DeepSpeed's settings: the config's own block, else one of the strategy's ZeRO stage."""
    training = config.training
    block = training.deepspeed
    if isinstance(block, dict):
        return dict(block)
    word = training.mixed_precision
    settings: JsonObject = {
        "train_micro_batch_size_per_gpu": training.per_device_train_batch_size,
        "gradient_accumulation_steps": training.gradient_accumulation_steps,
        "gradient_clipping": training.max_grad_norm,
        "bf16": {"enabled": word in ("bf16", "auto")},
        "fp16": {"enabled": word == "fp16"},
        "zero_optimization": {"stage": _STAGES.get(training.distributed_strategy, 2)},
    }
    if training.optim.startswith("adamw_torch"):
        params: JsonObject = {
            "lr": training.learning_rate,
            "betas": [training.adam_beta1, training.adam_beta2],
            "eps": training.adam_epsilon,
            "weight_decay": training.weight_decay,
        }
        settings["optimizer"] = {"type": "AdamW", "params": params}
    return settings


def accelerate_yaml(config: Config) -> JsonObject:
    """Return the settings that `accelerate config` would write for this job."""
    training, launch = config.training, config.launch
    chosen = training.distributed_strategy
    word = training.mixed_precision
    processes = (launch.nproc or 1) * launch.nnodes
    settings: JsonObject = {
        "compute_environment": "LOCAL_MACHINE",
        "mixed_precision": "bf16" if word == "auto" else word,
        "num_processes": processes,
        "num_machines": launch.nnodes,
        "machine_rank": launch.node_rank,
        "use_cpu": training.use_cpu,
        "debug": False,
    }
    if launch.nnodes > 1:
        settings |= {"main_process_ip": launch.master_addr, "main_process_port": launch.master_port}
    if chosen in ("zero1", "zero2", "zero3") or training.deepspeed:
        stage = as_object(as_object(training.deepspeed).get("zero_optimization")).get(
            "stage", _STAGES.get(chosen, 2)
        )
        block: JsonObject = {
            "zero_stage": stage,
            "gradient_accumulation_steps": training.gradient_accumulation_steps,
            "gradient_clipping": training.max_grad_norm,
        }
        return settings | {"distributed_type": "DEEPSPEED", "deepspeed_config": block}
    if chosen == "fsdp":
        block = {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": True,
            "fsdp_activation_checkpointing": training.gradient_checkpointing,
        }
        return settings | {"distributed_type": "FSDP", "fsdp_config": block}
    several = processes > 1 and chosen in STRATEGIES.names()
    return settings | {
        "distributed_type": ("MULTI_CPU" if training.use_cpu else "MULTI_GPU") if several else "NO"
    }


#: Of this machine or of what is written where: no part of what another system's file says
_OURS_ALONE = (
    *("launch.", "generation.", "training.experiment_name", "training.log_level", "data.cache_dir"),
    *("training.output_dir", "training.overwrite_output_dir", "training.ddp_backend"),
)
_MADE: dict[str, Callable[[Config, Given], JsonObject]] = {
    "trl": trl.trl,
    "llamafactory": llamafactory.llamafactory,
    "axolotl": axolotl.axolotl,
    "swift": swift.swift,
}
_PURE_BF16: dict[str, JsonObject] = {
    "trl": {"dtype": "bfloat16", "bf16": True},
    "llamafactory": {"pure_bf16": True, "bf16": False},
    "axolotl": {"bf16": True},
    "swift": {"torch_dtype": "bfloat16", "bf16": True},
}
_BY_DEEPSPEED = ("zero1", "zero2", "zero3", "deepspeed")
#: what DeepSpeed's integration of Transformers fills in
_COUNTS = (
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
    "gradient_clipping",
)
#: systems that need rows of ours in another form, and when
ROWS_WANTED: dict[str, Callable[[Config], bool]] = {"trl": trl.rows_wanted, "axolotl": axolotl.rows_wanted}


@dataclass
class Exported:
    """The other system's keys in order; ``lost``: our path → what an import of them would set instead;
    ``files``: texts next to it, by name; ``missing``: files that it names and only ``--output`` writes.
    ``starts``: the command that the file is for, where its keys do not say it.
    """

    system: str
    keys: JsonObject = field(default_factory=dict)
    lost: dict[str, tuple[Json, Json]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    starts: str = ""

    def text(self) -> str:
        """Return the file, with the settings that it cannot keep as comments at its end."""
        lines = [f"# exported by `paceline config export --to {self.system}`"]
        lines += [f"# for: {self.starts}"] if self.starts else []
        lines += [f"{key}: {scalar(value)}" for key, value in self.keys.items()]
        lines += [f"# not there yet, --output FILE writes it: {name}" for name in self.missing]
        if self.lost:
            lines.append("# not kept (ours -> what this file means there):")
            lines += [
                f"#   {path}: {shown(path, a, 60)} -> {shown(path, b, 60)}"
                for path, (a, b) in self.lost.items()
            ]
        return "\n".join(lines) + "\n"


#: Keys whose empty value is the default of the other program's trainer, which an import writes out
_BY_ALGORITHM = ("training.disable_dropout",)


def check_exportable(config: Config, system: str) -> None:
    """Raise ConfigError where the system lacks the algorithm, or there is no such system."""
    algorithm = config.training.algorithm
    if system not in NAMES:
        systems = ", ".join((*NAMES, *JOB_FILES))
        raise ConfigError(
            codes.CONFIG_EXPORT("there is no such system", "--to", system, f"one of: {systems}")
        )
    if algorithm not in ALGORITHMS_OF[system]:
        algorithms = ", ".join(ALGORITHMS_OF[system])
        raise ConfigError(
            codes.CONFIG_EXPORT(
                f"{system} has no trainer for {algorithm}",
                "training.algorithm",
                algorithm,
                f"one of: {algorithms}",
            )
        )


def export_config(loaded: Loaded, system: str, given: Given | None = None) -> Exported:
    """Return the config as a file of ``system``. Raises ConfigError where it lacks the algorithm."""
    config, given = loaded.config, given or Given()
    check_exportable(config, system)
    algorithm = config.training.algorithm
    exported, values = Exported(system, files=given.files), leaves(config)
    if system == "swift":
        exported.starts = f"swift {swift.command(config, given)} FILE"
    for path, name in _names(system, algorithm).items():
        value = values.get(path)
        value = WORDS[system].get(path, {}).get(str(value), value)
        if value is not None and value not in ([], {}, "auto"):
            exported.keys[name] = value
    exported.keys |= _precision(config, system, given) | _sharding(config) | _MADE[system](config, given)
    if config.training.lr_scheduler_type in WORDS[system]["training.lr_scheduler_type"]:
        exported.keys.pop("lr_scheduler_kwargs", None)  # of a schedule that is not there
    model = {"axolotl": "base_model", "swift": "model"}.get(system, "model_name_or_path")
    if config.model.config is not None:
        exported.keys = {model: given.model or f"{given.stem}_model", **exported.keys}
        exported.keys.pop("tokenizer_config", None)  # the folder has it
    if system == "trl" and not trl.evaluates(config, given):
        exported.keys |= {"eval_strategy": "no", "load_best_model_at_end": False}
    _leave_out_defaults(exported, swift.command(config, given) if system == "swift" else algorithm)
    exported.keys.setdefault("output_dir", f"outputs/{config.training.experiment_name or given.stem}")
    exported.missing = _missing(config, system, given)
    exported.lost = _lost(exported, values, config, given)
    return exported


def _missing(config: Config, system: str, given: Given) -> list[str]:
    """Return the missing inputs of the file: initial weights, and rows in the system's format."""
    wanted = system in ROWS_WANTED and ROWS_WANTED[system](config) and not given.rows
    model = ["the first weights of model.config"] if config.model.config and not given.model else []
    return model + ([f"rows as {system} reads them"] if wanted else [])


def _names(system: str, algorithm: str) -> dict[str, str]:
    """Return our path → their name, of this algorithm."""
    options = OPTIONS_OF[system].get(algorithm, {})
    names = NAMES[system] | {f"training.{algorithm}.{ours}": theirs for ours, theirs in options.items()}
    return names | ({f"training.rollout.{name}": name for name in ROLLOUT_OF_TRL} if system == "trl" else {})


def _whole(key: str, value: Json) -> Json:
    """Return a whole number of steps as an int: other systems read a float below 1 as a share."""
    steps = key.endswith("_steps") and isinstance(value, float) and value >= 1
    return int(value) if steps and isinstance(value, float) and value == int(value) else value


def _precision(config: Config, system: str, given: Given) -> JsonObject:
    word = config.training.mixed_precision
    if config.training.pure_bf16:
        return _PURE_BF16[system] | {"fp16": False}
    word = given.precision if word == "auto" else word
    dtype: JsonObject = {"torch_dtype": "float32"} if system == "swift" else {}
    return {"bf16": word == "bf16", "fp16": word == "fp16", **dtype}


def _sharding(config: Config) -> JsonObject:
    """Return DeepSpeed's settings, which the files of all three systems can hold; other strategies are
    options of a launcher."""
    training = config.training
    if not training.deepspeed and training.distributed_strategy not in _BY_DEEPSPEED:
        return {}
    block = deepspeed_json(config)
    for key in ("optimizer", "scheduler", "bf16", "fp16"):  # the program's own keys set them
        block.pop(key, None)
    return {"deepspeed": {**block, **dict.fromkeys(_COUNTS, "auto")}}


def _leave_out_defaults(exported: Exported, trainer: str) -> None:
    """Remove keys that the system does not read here, and defaults except those that every file names."""
    of_systems: dict[str, Callable[[], dict[str, object]]] = {
        "trl": lambda: trl_defaults(trainer),
        "llamafactory": lambda: defaults("transformers") | defaults("llamafactory"),
        "axolotl": axolotl_defaults,
        "swift": lambda: swift_defaults(trainer),
    }
    known: JsonObject = json.loads(json.dumps(of_systems[exported.system](), default=str))
    exported.keys = {
        key: _whole(key, value)
        for key, value in exported.keys.items()
        if key in known and (key in ALWAYS or not _is_default(value, known[key]))
    }


def _is_default(value: Json, default: Json) -> bool:
    return (default is None and value is False) or (default is not None and same(value, default))


def _lost(
    exported: Exported, values: dict[str, Json], config: Config, given: Given
) -> dict[str, tuple[Json, Json]]:
    """Return where an import of the exported keys differs from ours."""
    imported = _imported(exported, config.training.algorithm, given)
    ours, back = _settled(values, config, given), _settled(leaves(imported), imported, given)
    apart = (*_OURS_ALONE, *_in_files(exported, given))
    paths = [path for path in dict.fromkeys((*ours, *back)) if not path.startswith(apart)]
    pairs = {path: (ours.get(path), back.get(path)) for path in paths}
    chosen = {path for path in _BY_ALGORITHM if values.get(path) is None}
    return {path: pair for path, pair in pairs.items() if not same(*pair) and path not in chosen}


def _in_files(exported: Exported, given: Given) -> list[str]:
    """Return our paths whose values are in the files next to it, which an import does not read."""
    apart = (
        ["model.name_or_path", "model.config", "model.tokenizer", "model.chat_template"]
        if given.model
        else []
    )
    apart += ["data.train", "data.eval"] if given.rows else []
    rewards = any(name.endswith("_rewards.py") for name in exported.files)
    return apart + (["training.rollout.rewards"] if rewards else [])


def _settled(values: dict[str, Json], config: Config, given: Given) -> dict[str, Json]:
    """Return the values with ``auto`` resolved: the precision, and which tokens have loss."""
    settled = dict(values)
    if settled.get("training.mixed_precision") == "auto":
        settled["training.mixed_precision"] = given.precision
    if settled.get("data.train_on") == "auto":
        forms = {given.form} if given.form else {form_of(data_set) for data_set in config.data.train}
        settled["data.train_on"] = "all" if forms == {"text"} else "assistant"
    for path, sets in (("data.train", config.data.train), ("data.eval", config.data.eval)):
        if sets:
            settled[path] = [_seen(data_set) for data_set in sets]
    return settled


def _seen(data_set: Dataset) -> Json:
    """Return a data set with its file's absolute path, the format of its rows, and renamed columns."""
    form, local = data_set.format, Path(data_set.path)
    columns = {ours: theirs for ours, theirs in data_set.columns.items() if ours != theirs}
    return {
        **data_set.model_dump(mode="json"),
        "path": str(local.resolve()) if local.exists() else data_set.path,
        "format": form_of(data_set) or form if form == "auto" else form,
        "columns": columns,
    }


def _absolute(info: str, given: Given) -> str:
    """Return ``dataset_info.json`` with absolute paths, to be read from another folder."""
    entries: JsonObject = json.loads(info)
    for entry in map(as_object, entries.values()):
        if isinstance(file := entry.get("file_name"), str):
            entry["file_name"] = str((Path(given.folder) / file).resolve())
    return json.dumps(entries)


def _imported(exported: Exported, algorithm: str, given: Given) -> Config:
    with tempfile.TemporaryDirectory(prefix="paceline-export-") as folder:
        for name, text in exported.files.items():
            text = _absolute(text, given) if name == llamafactory.INFO else text
            (Path(folder) / name).write_text(text, encoding="utf-8")
        keys = {**exported.keys, **({"dataset_dir": folder} if "dataset_dir" in exported.keys else {})}
        places = {key: number for number, key in enumerate(keys, 1)}
        starts = exported.starts.split()
        word = starts[1] if "pt" in starts else algorithm
        imported = import_data(keys, places, "exported", exported.system, word)
        composed, _ = accepted(imported, "exported")
        file = Path(folder) / "exported.yaml"
        file.write_text(composed.text, encoding="utf-8")
        return load_config(str(file)).config


def leaves(config: Config) -> dict[str, Json]:
    """Return every value by dotted path; free-form mappings and lists are values."""
    values: dict[str, Json] = {}
    todo: list[tuple[str, Json]] = list(config.to_json().items())
    while todo:
        path, value = todo.pop(0)
        info = field_of(path)
        if isinstance(value, dict) and (info is None or nested_model(info) is not None):
            todo += [(f"{path}.{key}", inner) for key, inner in value.items()]
        else:
            values[path] = value
    return values


def export_text(loaded: Loaded, system: str, given: Given | None = None) -> str:
    """Return the file for ``system``. Raises ConfigError for an unknown one."""
    if system in JOB_FILES:
        return JOB_FILES[system](loaded.config)
    return export_config(loaded, system, given).text()


def _accelerate(config: Config) -> str:
    return "".join(_lines(key, value) for key, value in accelerate_yaml(config).items())


def _lines(key: str, value: Json) -> str:
    if isinstance(value, dict):
        return f"{key}:\n" + "".join(f"  {inner}: {scalar(item)}\n" for inner, item in value.items())
    return f"{key}: {scalar(value)}\n"


JOB_FILES: dict[str, Callable[[Config], str]] = {
    "accelerate": _accelerate,
    "deepspeed": lambda config: json.dumps(deepspeed_json(config), indent=2) + "\n",
}
