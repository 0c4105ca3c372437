"""Export a config of ours to another training system, or to DeepSpeed or Accelerate.

Each effective value is written under that system's name. What is written for a training system is imported
again: where that gives another value, the key is listed as one that is not kept.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from paceline.config import codes
from paceline.config.import_export.export_names import (
    ALGORITHMS_OF,
    NAMES,
    OPTIONS_OF,
    ROLLOUT_OF_TRL,
    made_keys,
)
from paceline.config.import_export.import_config import import_data
from paceline.config.import_export.write_yaml import accepted, scalar
from paceline.config.keys.valid_keys import same
from paceline.config.load import Loaded, load_config
from paceline.config.schema import Config, field_of, nested_model
from paceline.config.source import shown
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.core.plugins.tables import STRATEGIES

#: Of this machine or of what is written where: no part of what another system's file says
_OURS_ALONE = ("launch.", "generation.", "training.experiment_name", "training.log_level", "data.cache_dir")


@dataclass
class Exported:
    """The other system's keys in order; ``lost``: our path → what an import of them would set instead."""

    system: str
    keys: JsonObject = field(default_factory=dict)
    lost: dict[str, tuple[Json, Json]] = field(default_factory=dict)

    def text(self) -> str:
        """Return the file, with the settings that it cannot keep as comments at its end."""
        lines = [f"# exported by `paceline config export --to {self.system}`"]
        lines += [f"{key}: {scalar(value)}" for key, value in self.keys.items()]
        if self.lost:
            lines.append("# not kept (ours -> what this file means there):")
            lines += [
                f"#   {path}: {shown(path, a, 60)} -> {shown(path, b, 60)}"
                for path, (a, b) in self.lost.items()
            ]
        return "\n".join(lines) + "\n"


#: Keys whose empty value is the default of the other program's trainer, which an import writes out
_BY_ALGORITHM = ("training.disable_dropout",)


def export_config(loaded: Loaded, system: str) -> Exported:
    """Return the config as a file of ``system``. Raises ConfigError where it lacks the algorithm."""
    config = loaded.config
    algorithm = config.training.algorithm
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
    exported = Exported(system)
    values = leaves(config)
    names = dict(NAMES[system])
    options = OPTIONS_OF[system].get(algorithm, {})
    names |= {f"training.{algorithm}.{ours}": theirs for ours, theirs in options.items()}
    if system == "trl":
        names |= {f"training.rollout.{name}": name for name in ROLLOUT_OF_TRL}
    for path, name in names.items():
        value = values.get(path)
        if value is not None and value not in ([], {}):
            exported.keys[name] = value
    exported.keys |= made_keys(config, system)
    exported.lost = _lost(exported, values, algorithm)
    return exported


def _lost(exported: Exported, values: dict[str, Json], algorithm: str) -> dict[str, tuple[Json, Json]]:
    """Return where an import of the exported keys differs from ours."""
    back = leaves(_imported(exported, algorithm))
    paths = [path for path in dict.fromkeys((*values, *back)) if not path.startswith(_OURS_ALONE)]
    pairs = {path: (values.get(path), back.get(path)) for path in paths}
    chosen = {path for path in _BY_ALGORITHM if values.get(path) is None}
    return {path: pair for path, pair in pairs.items() if not same(*pair) and path not in chosen}


def _imported(exported: Exported, algorithm: str) -> Config:
    composed, _ = accepted(
        import_data(
            exported.keys,
            {key: number for number, key in enumerate(exported.keys, 1)},
            "exported",
            exported.system,
            algorithm,
        ),
        "exported",
    )
    with tempfile.TemporaryDirectory(prefix="paceline-export-") as folder:
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


def export_text(loaded: Loaded, system: str) -> str:
    """Return the file for ``system``. Raises ConfigError for an unknown one."""
    if system in NAMES:
        return export_config(loaded, system).text()
    if system == "deepspeed":
        return json.dumps(deepspeed_json(loaded.config), indent=2) + "\n"
    if system == "accelerate":
        return "".join(_lines(key, value) for key, value in accelerate_yaml(loaded.config).items())
    systems = ", ".join((*NAMES, "accelerate", "deepspeed"))
    raise ConfigError(codes.CONFIG_EXPORT("there is no such system", "--to", system, f"one of: {systems}"))


def _lines(key: str, value: Json) -> str:
    if isinstance(value, dict):
        return f"{key}:\n" + "".join(f"  {inner}: {scalar(item)}\n" for inner, item in value.items())
    return f"{key}: {scalar(value)}\n"


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
