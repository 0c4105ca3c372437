"""The user's DeepSpeed settings, and their ``zero_optimization`` block as DeepSpeed 0.19 takes it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from paceline.config import codes as config_codes
from paceline.config.sections.training import TrainingSection
from paceline.core.json_types import Json, JsonObject
from paceline.plan import codes

if TYPE_CHECKING:
    from paceline.plan.strategies.spec import Findings, Job
    from paceline.plan.strategy_options import DeepSpeedOptions

_DEVICES = ("none", "cpu", "nvme")
# Old keys and their current names.
_OLD = {
    "stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
    "gather_16bit_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
    "max_live_parameters": "stage3_max_live_parameters",
    "max_reuse_distance": "stage3_max_reuse_distance",
    "prefetch_bucket_size": "stage3_prefetch_bucket_size",
    "param_persistence_threshold": "stage3_param_persistence_threshold",
}
_REMOVED = {
    "mics_shard_size": (
        "MiCS has been removed from DeepSpeed; fsdp: hybrid_shard shards inside a node and copies between"
        " nodes"
    ),
    "mics_hierarchical_params_gather": "MiCS has been removed from DeepSpeed",
    "legacy_stage1": "DeepSpeed no longer has its old stage 1",
    "elastic_checkpoint": "Paceline writes its own checkpoints, which any number of ranks can read",
    "load_from_fp32_weights": "Paceline writes its own checkpoints, which always contain fp32 master weights",
}
# What "auto" means, from the hidden size h (Transformers 5.23, integrations/deepspeed.py).
_AUTO_FROM_HIDDEN: dict[str, Callable[[int], int]] = {
    "reduce_bucket_size": lambda h: h * h,
    "stage3_prefetch_bucket_size": lambda h: int(0.9 * h * h),
    "stage3_param_persistence_threshold": lambda h: 10 * h,
}


def zero_optimization(
    user: Mapping[str, Json], engine: DeepSpeedOptions, job: Job, findings: Findings
) -> JsonObject:
    """Return the block as DeepSpeed 0.19 takes it, for the plan's stage."""
    block = copy.deepcopy(zero_block(user))
    stage = engine.zero_stage
    _modern(block, findings)
    _fill(block, job, findings)
    for part in ("offload_optimizer", "offload_param"):
        _offload(block, part, engine, findings)
    _loss_less(block, job, findings)
    _second_copy(block, stage, job, findings)
    if stage < 3:
        block = {key: value for key, value in block.items() if not key.startswith("stage3_")}
    return {**{key: _number(value) for key, value in block.items()}, "stage": stage}


def _modern(block: JsonObject, findings: Findings) -> None:
    pin = block.pop("cpu_offload_use_pin_memory", None)
    for old, new in (
        ("cpu_offload", "offload_optimizer"),
        ("cpu_offload_params", "offload_param"),
        ("cpu_offload_param", "offload_param"),
    ):
        if block.pop(old, None) is True and new not in block:
            block[new] = {"device": "cpu", **({"pin_memory": True} if pin else {})}
            findings.explain(
                f"zero_optimization.{old}", new, f'DeepSpeed\'s old spelling of "{new}": {{"device": "cpu"}}'
            )
    for old, new in _OLD.items():
        if old in block:
            block.setdefault(new, block.pop(old))
    for key, why in _REMOVED.items():
        if block.pop(key, None) not in (None, False, -1):
            findings.explain(f"zero_optimization.{key}", "off", why, granted=False)


def _fill(block: JsonObject, job: Job, findings: Findings) -> None:
    hidden = job.shape.hidden_size if job.shape else None
    for key, rule in _AUTO_FROM_HIDDEN.items():
        if block.get(key) != "auto":
            continue
        if hidden is None:
            del block[key]
            findings.explain(
                f"zero_optimization.{key}", "DeepSpeed's default", "auto; the hidden size is unknown"
            )
        else:
            block[key] = rule(hidden)
            findings.explain(
                f"zero_optimization.{key}", f"{block[key]:,}", f"auto: from the hidden size {hidden}"
            )


def _offload(block: JsonObject, part: str, engine: DeepSpeedOptions, findings: Findings) -> None:
    settings = block.get(part)
    if not isinstance(settings, dict):
        block.pop(part, None)
        return
    # Check the device; drop blocks without effect.
    device = str(settings.get("device", "none")).lower()
    if device not in _DEVICES:
        findings.refuse(
            codes.ZERO_OFFLOAD(
                f"{part} supports the devices none, cpu and nvme", KEY, f"device: {device}", '"device": "cpu"'
            )
        )
    if device == "none" or (part == "offload_param" and engine.zero_stage < 3):
        if device != "none":
            findings.explain(
                f"zero_optimization.{part}",
                "off",
                f"only ZeRO-3 moves weights away; this is ZeRO-{engine.zero_stage}",
                granted=False,
            )
        del block[part]
        return
    # Refuse offloading that this stage cannot do.
    if engine.zero_stage == 0:
        findings.refuse(
            codes.ZERO_OFFLOAD(
                f"{part} needs ZeRO-1 or higher",
                KEY,
                f"device: {device} with stage 0",
                'set "stage": 1, or remove offload',
            )
        )
    if device == "nvme" and not settings.get("nvme_path"):
        findings.refuse(
            config_codes.ZERO_NVME_PATH(
                f"{part} to NVMe needs a folder on the drive",
                KEY,
                f'{part}: {{"device": "nvme"}}',
                '"nvme_path": "/local_nvme"',
            )
        )
    if device == "nvme" and engine.zero_stage < 3:
        findings.refuse(codes.ZERO_NVME_STAGE(KEY, f"{part} to nvme with stage {engine.zero_stage}"))
    ratio = settings.get("ratio", 1.0)
    if isinstance(ratio, (int, float)) and ratio < 1.0 and engine.zero_stage != 3:
        findings.refuse(codes.ZERO_OFFLOAD_RATIO(KEY, f"ratio: {ratio}"))
    block[part] = {key: value for key, value in settings.items() if value != "auto"}


def _loss_less(block: JsonObject, job: Job, findings: Findings) -> None:
    """Reject (on a CPU) or report ZeRO++'s quantized communication: it changes results and needs CUDA."""
    for key in ("zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights"):
        if block.get(key) is not True:
            continue
        if job.hardware.device == "cpu":
            findings.refuse(codes.ZERO_QUANTISED(KEY, f"{key}: true", key=key))
        else:
            findings.explain(
                f"zero_optimization.{key}",
                "on",
                "requested: data are sent quantised, so losses differ from those of other strategies",
            )


def _second_copy(block: JsonObject, stage: int, job: Job, findings: Findings) -> None:
    """Check hpZ of ZeRO++: weights are also sharded over few ranks, so that the backward gathers within a
    node."""
    size, key = block.get("zero_hpz_partition_size", 1), "zero_hpz_partition_size"
    if not isinstance(size, int) or size <= 1:
        return
    subject = f"zero_optimization.{key}"
    if stage < 3:
        findings.explain(subject, "off", f"only ZeRO-3 shards weights; this is ZeRO-{stage}", granted=False)
        return
    if job.world_size % min(size, job.world_size):
        legal = ", ".join(str(n) for n in range(2, size) if job.world_size % n == 0) or "1"
        findings.refuse(
            codes.ZERO_HPZ(KEY, f"{key}: {size}", world_size=job.world_size, size=size, key=key, legal=legal)
        )
        return
    held = min(size, job.world_size)
    findings.explain(
        subject,
        str(held),
        f"requested: a second copy of the weights, sharded over {held} ranks, in the dtype of the"
        " forward; counted in the parameters below",
    )


def _number(value: Json) -> Json:
    """Convert floats such as 1e9 from JSON to int: DeepSpeed's counts are integers."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) >= 1000 else value


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


def requested_stage(user: Mapping[str, Json]) -> int:
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
