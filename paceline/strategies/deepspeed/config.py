"""The configuration passed to DeepSpeed: the plan's, without everything that is owned elsewhere.

Each of these has one owner, whatever a user's JSON says:

* the schedule: Paceline (``lr`` is an argument of every window); DeepSpeed gets no scheduler
* the optimizer: the plan's torch optimizer, passed as a client optimizer; DeepSpeed partitions its state
* clipping: the value passed to every window. ZeRO-1/2/3 clip inside their step, by torch's own formula (``1 /
  max(1, (norm + 1e-6) / max)``), as only they see all partitions. At stage 0 DeepSpeed's own clipping is not
  used (in low precision it is wrong); gradients are whole and clipped as under DDP
* precision: DeepSpeed from stage 1 on (low-precision parameters, fp32 partitions of the masters). At stage 0
  its bf16 optimizer drifts (a loss difference of 1.6e-2 after ten steps), so parameters stay fp32 and the
  model uses its own low-precision copies
* the loss: summed and weighted by Paceline; neither accumulation nor the data-parallel mean may silently
  rescale it
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from pathlib import Path

from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.plan.plan import Plan
from paceline.plan.strategy_options import DeepSpeedOptions
from paceline.strategies import codes

_OWNED = ("optimizer", "scheduler", "gradient_clipping", "train_batch_size")
_ULYSSES = ("sequence_parallel_size", "data_parallel_size")  # ZeRO would not reduce over Ulysses ranks
_PRECISION = ("bf16", "bfloat16", "fp16", "torch_autocast", "data_types")
_HEAD = ("vocab_parallel_lm_head", "vocab_parallel_ce_backend")  # of tensor_parallel: the loss is ours


def options_of(plan: Plan) -> DeepSpeedOptions:
    """Return DeepSpeed's options in the plan; the defaults for a subclass from outside, whose options the
    plan does not know.
    """
    return plan.engine if isinstance(plan.engine, DeepSpeedOptions) else DeepSpeedOptions()


def engine_config(plan: Plan, role: str = "") -> JsonObject:
    """Return a new config for ``deepspeed.initialize`` of the model of ``role``.

    Raises ConfigError ``strategy.deepspeed_float64`` for float64 masters, which no ZeRO stage supports.
    """
    stage = options_of(plan).zero_stage
    if stage and plan.precision.master == "float64":
        raise ConfigError(codes.STRATEGY_DEEPSPEED_FLOAT64("model.dtype", "float64", stage=stage))
    # Drop what Paceline owns (see above), then set what its arithmetic relies on.
    config: JsonObject = copy.deepcopy(dict(options_of(plan).config or minimal(plan)))
    for key in (*_OWNED, *_ULYSSES, *(() if stage else _PRECISION)):
        config.pop(key, None)
    for key in _HEAD:
        as_object(config.get("tensor_parallel")).pop(key, None)
    config["gradient_clipping"] = 0.0
    zero = as_object(config.get("zero_optimization"))
    if stage == 3 and plan.mesh.cp > 1:  # without it, the divisor is another number of ranks
        config["zero_optimization"] = zero = {**zero, "reduce_scatter": True}
    _own_drive_folders(zero, plan.run_dir, role)
    config["zero_allow_untested_optimizer"] = True  # ``check_optimizer`` refuses what cannot be partitioned
    # torch's fused AdamW runs on the CPU as well, and resumes bit for bit
    config["zero_force_ds_cpu_optimizer"] = False
    return config


def asking_config(plan: Plan, role: str) -> JsonObject:
    """Return the config for a frozen model, whose weights ZeRO-3 partitions."""
    config = engine_config(plan, role)
    as_object(config.get("zero_optimization")).pop("offload_optimizer", None)
    return config


def _own_drive_folders(zero: JsonObject, run_dir: str, role: str) -> None:
    """Give this model a separate folder for NVMe offload, in place.

    DeepSpeed names its files by rank and parameter only, and empties the folder at the start. Two runs (and
    two models of a run) would overwrite each other's files.
    """
    run_folder = f"paceline-{hashlib.sha256(run_dir.encode()).hexdigest()[:12]}"
    for name in ("offload_optimizer", "offload_param"):
        block = as_object(zero.get(name))
        if block.get("device") == "nvme":
            nvme_path = block.get("nvme_path")
            block["nvme_path"] = str(
                (Path(str(nvme_path)) / run_folder if nvme_path else Path(run_dir) / "nvme") / role
            )


def minimal(plan: Plan) -> JsonObject:
    """Return the config for the plan's stage, batch and precision if no JSON was compiled."""
    config: JsonObject = {
        "train_micro_batch_size_per_gpu": plan.batch.micro_batch,
        "gradient_accumulation_steps": plan.batch.accumulation,
        "zero_optimization": zero_section(options_of(plan)),
        **({plan.precision.half: {"enabled": True}} if plan.precision.half else {}),
    }
    if plan.mesh.tp > 1:
        config["tensor_parallel"] = {"autotp_size": plan.mesh.tp}
    return config


def zero_section(engine: DeepSpeedOptions) -> JsonObject:
    """Return ``zero_optimization`` for the stage and the offload devices of ``engine``."""
    section: JsonObject = {"stage": engine.zero_stage}
    for name, device in zip(("offload_optimizer", "offload_param"), engine.places, strict=True):
        if device != "none":
            section[name] = {"device": device}
    return section


def averages_gradients(config: Mapping[str, Json]) -> bool:
    """Return whether DeepSpeed averages gradients instead of summing them (``gradient_allreduce_op``)."""
    return str(config.get("gradient_allreduce_op", "mean")).lower() != "sum"
