"""The user's DeepSpeed settings as written, in any of DeepSpeed's spellings."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.config.sections.training import TrainingSection
from paceline.core.json_types import Json, JsonObject

KEY = "training.deepspeed"


def user_config(training: TrainingSection) -> JsonObject:
    """Return the user's DeepSpeed settings; empty if none are given (short forms zero1, zero2, zero3)."""
    return dict(training.deepspeed) if isinstance(training.deepspeed, dict) else {}


def zero_block(user: Mapping[str, Json]) -> JsonObject:
    """Return ``zero_optimization`` as a dict; DeepSpeed's oldest form (true) means stage 1."""
    block = user.get("zero_optimization")
    if isinstance(block, bool):
        return {"stage": 1 if block else 0}
    return dict(block) if isinstance(block, dict) else {}


def whole(block: Mapping[str, Json], key: str, default: int) -> int:
    """Return a whole number of the file; ``default`` if it is missing or no number."""
    value = block.get(key)
    return int(value) if isinstance(value, (int, float)) else default


def asked_stage(user: Mapping[str, Json]) -> int:
    """Return the file's ZeRO stage; DeepSpeed's default is 0."""
    stage = zero_block(user).get("stage", 0)
    return int(stage) if isinstance(stage, (int, float)) and not isinstance(stage, bool) else 0


def offload_device(zero: Mapping[str, Json], part: str) -> str:
    """Return the device (none, cpu or nvme) of ``offload_optimizer`` or ``offload_param``."""
    block = zero.get(part)
    if isinstance(block, dict):
        return str(block.get("device", "none")).lower()
    old = {
        "offload_optimizer": ("cpu_offload",),
        "offload_param": ("cpu_offload_param", "cpu_offload_params"),
    }[part]
    return "cpu" if any(zero.get(name) is True for name in old) else "none"
