"""Which system a config belongs to."""

from __future__ import annotations

from paceline.config.foreign.kinds import kind_of
from paceline.config.foreign.programs import program_of
from paceline.core.json_types import Json

SYSTEMS = ("llamafactory", "trl", "axolotl", "accelerate", "deepspeed", "hf", "swift")
_PROGRAMS = {"axolotl": "axolotl", "ms-swift": "swift", "LLaMA-Factory": "llamafactory", "TRL": "trl"}


def system_of(data: Json) -> str | None:
    """Return the system (one of SYSTEMS) whose config this is; None for an unknown one."""
    kind = kind_of(data)
    if kind in ("deepspeed", "accelerate"):
        return kind
    program = program_of(data)
    if program is not None:
        return _PROGRAMS.get(program.name)
    if isinstance(data, dict) and not {"model", "data", "training"} & set(data):
        if "model_name_or_path" in data and {
            "attn_implementation",
            "torch_dtype",
            "dtype",
            "model_revision",
        } & set(data):
            return "trl"
        if {"output_dir", "learning_rate", "per_device_train_batch_size"} & set(data):
            return "hf"
    return None
