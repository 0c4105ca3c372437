"""Which strategy: the guide's size rule for ``auto``, and what this version can start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.units import human_bytes, human_count
from paceline.plan.hardware import Hardware
from paceline.plan.shape import ModelShape

AVAILABLE_STRATEGIES = ("single", "ddp")
AVAILABLE_ALGORITHMS = ("sft",)
SHARDED = frozenset({"fsdp", "deepspeed", "zero1", "zero2", "zero3"})
KEY = "training.distributed_strategy"

# fp32 weights and gradients and Adam's two fp32 moments (Rajbhandari et al. 2020, arXiv:1910.02054, §3.1, without the fp16 copy).
REPLICATED_BYTES_PER_PARAMETER = 16


def choose_strategy(
    asked: str, training: Mapping[str, Any], shape: ModelShape | None, hardware: Hardware, world_size: int
) -> tuple[str, str]:
    """(strategy, reason). Raises ConfigError for one that this version cannot start; unknown names are the config rules' business."""
    if ":" in asked:
        return asked, "your own class, named in the config"
    strategy, reason = _by_rule(training, shape, world_size) if asked == "auto" else (asked, "named in the config")
    if strategy not in AVAILABLE_STRATEGIES:
        raise ConfigError(_not_available(strategy, asked, reason, shape, hardware))
    if strategy == "ddp" and world_size == 1:
        return (
            "single",
            "ddp was asked for; with one process there is nothing to average, and 'single' computes the same",
        )
    return strategy, reason


def _by_rule(training: Mapping[str, Any], shape: ModelShape | None, world_size: int) -> tuple[str, str]:
    """``auto``: sections for an engine first, then one process, then the size rule (<1B DDP, 1 to 7B ZeRO-2, above ZeRO-3)."""
    if training.get("deepspeed"):
        return "deepspeed", "auto: the config has training.deepspeed"
    if training.get("fsdp"):
        return "fsdp", "auto: the config has training.fsdp"
    parallelism = training.get("parallelism") or {}
    if (parallelism.get("pp_size") or 1) > 1:
        return "pipeline", "auto: training.parallelism.pp_size is above 1"
    if any((parallelism.get(f"{axis}_size") or 1) > 1 for axis in ("dp_shard", "cp", "tp")):
        return "fsdp", "auto: training.parallelism shards the model or the sequence"
    if world_size == 1:
        return "single", "auto: one process"
    if shape is None:
        return "ddp", "auto: the model's size is not known before it is downloaded; below 1B parameters DDP is the rule"
    count = human_count(shape.num_parameters)
    if shape.num_parameters < 1_000_000_000:
        return "ddp", f"auto: {count} parameters, below 1B: replicate the model, average the gradients"
    if shape.num_parameters <= 7_000_000_000:
        return "zero2", f"auto: {count} parameters, from 1B to 7B: ZeRO-2"
    return "zero3", f"auto: {count} parameters, above 7B: ZeRO-3"


def _not_available(strategy: str, asked: str, reason: str, shape: ModelShape | None, hardware: Hardware) -> Diagnostic:
    found = strategy if strategy == asked else f"{asked} → {strategy} ({reason.removeprefix('auto: ')})"
    hint = f"{KEY}: ddp"
    if shape is not None:
        need = shape.num_parameters * REPLICATED_BYTES_PER_PARAMETER
        hint += f" (a full copy a process: {human_bytes(need)} before activations; this device has {human_bytes(hardware.memory_bytes)})"
    return Diagnostic(
        "plan.strategy_not_available",
        f"the strategy '{strategy}' is valid in a config but cannot be started by this version (it starts: {', '.join(AVAILABLE_STRATEGIES)}, module:Class)",
        KEY,
        found,
        hint,
    )


def check_algorithm(algorithm: str) -> list[Diagnostic]:
    """A finding when ``algorithm`` cannot be started by this version."""
    if algorithm in AVAILABLE_ALGORITHMS:
        return []
    what = f"the algorithm '{algorithm}' is valid in a config but cannot be started by this version"
    return [
        Diagnostic(
            "plan.algorithm_not_available",
            what,
            "training.algorithm",
            algorithm,
            f"algorithm: {' or '.join(AVAILABLE_ALGORITHMS)}",
        )
    ]
