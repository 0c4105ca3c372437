"""Recognise the system that a configuration file belongs to by its keys."""

from __future__ import annotations

from paceline.config import codes
from paceline.config.backend_files.deepspeed.normalize import table
from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import Json, JsonObject

KINDS = ("deepspeed", "accelerate", "fsdp", "config")
_KEYS = {"deepspeed": "deepspeed", "accelerate": "accelerate_config", "fsdp": "fsdp_config"}
_NAMES = {
    "deepspeed": "a DeepSpeed config",
    "accelerate": "an Accelerate config",
    "fsdp": "a file of FSDP settings",
}


def kind_of(data: Json) -> str:
    """Return ``deepspeed``, ``accelerate``, ``fsdp``, or ``config`` (training arguments of any kind)."""
    if not isinstance(data, dict):
        return "config"
    if "distributed_type" in data or "compute_environment" in data:
        return "accelerate"
    if "fsdp_config" in data and {key for key in data if not key.startswith("_")} <= {"fsdp", "fsdp_config"}:
        return "fsdp"
    if whole_deepspeed(data):
        return "deepspeed"
    marks = {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "fp16", "bf16"}
    blocks = [key for key in marks & set(data) if isinstance(data[key], dict) or key.startswith("train_")]
    return "deepspeed" if blocks else "config"


def whole_deepspeed(data: JsonObject) -> bool:
    """Whether all keys are DeepSpeed's and at least one is a block, as in ``{"autotuning": {…}}``."""
    keys = [key for key in data if not key.startswith(("_", "//", "#"))]
    return all(key in table() for key in keys) and any(isinstance(data[key], dict) for key in keys)


def not_a_config(data: Json, name: str) -> Diagnostic | None:
    """Return a finding if another system's file is given as the config, with the key to name it under."""
    kind = kind_of(data)
    if (
        not isinstance(data, dict)
        or kind == "config"
        or (kind == "deepspeed" and "zero_optimization" not in data and not whole_deepspeed(data))
    ):
        return None
    return codes.CONFIG_FOREIGN_AS_CONFIG(
        name, ", ".join(list(data)[:4]), names=_NAMES[kind], key=_KEYS[kind], name=name
    )
