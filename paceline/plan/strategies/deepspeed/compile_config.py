"""Build the complete config for ``deepspeed.initialize`` from the user's file and the YAML, without "auto".

The YAML decides micro-batch, accumulation, clipping, precision, learning rate, optimizer and schedule (the
file's values are its lowest layer). The file decides ZeRO, communication, offload and profiling. The plan
reports what is dropped or changed. Defaults of "auto" are those of Transformers 5.23
(integrations/deepspeed.py, ``trainer_config_finalize``).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING

from paceline.config.backend_files.deepspeed.key_verdicts import OPTIMIZERS, SCHEDULES
from paceline.core.json_types import Json, JsonObject
from paceline.plan import codes
from paceline.plan.mesh import BatchSplit
from paceline.plan.plan import Precision
from paceline.plan.strategies.deepspeed.zero_block import KEY, zero_optimization

if TYPE_CHECKING:
    from paceline.plan.strategies.spec import Findings, Job
    from paceline.plan.strategy_options import DeepSpeedOptions


# Keys set by Paceline or computed below: never copied from the file.
_OURS = frozenset(
    {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
        "optimizer",
        "scheduler",
        "fp16",
        "bf16",
        "bfloat16",
        "zero_optimization",
        "tensor_parallel",
        "sequence_parallel_size",
        "data_parallel_size",
        "amp",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "torch_autocast",
        "zero_optimization_stage",
        "data_types",
    }
)
# Blocks that change the training, the batch or the weights: refused if enabled, dropped if disabled.
_REFUSED = {
    "curriculum_learning": ("it orders rows by difficulty, but Paceline computes the order of data itself"),
    "data_efficiency": "it drops tokens and reorders data, but Paceline computes the order of data itself",
    "progressive_layer_drop": "it skips layers at random, which Hugging Face models do not support",
    "compression_training": "it quantises and prunes the weights during training",
    "quantize_training": "it quantises the weights during training",
    "elasticity": (
        "it chooses the batch size itself; here a resumed run keeps its global batch on another"
        " number of processes"
    ),
    "autotuning": "it starts many trial runs with its own launcher",
    "hybrid_engine": (
        "it replaces the model's layers with generation kernels that exist only for CUDA and old models"
    ),
    "sparse_attention": "it replaces attention with kernels that exist only for old models",
    "eigenvalue": "it applies only to DeepSpeed's quantised training",
    "amp": "Apex amp is not supported with ZeRO",
}
# Trackers and checkpoints, which Paceline writes itself.
_LEFT_OUT = {
    "tensorboard": "training.report_to: tensorboard writes the run's own events",
    "wandb": "training.report_to: wandb",
    "csv_monitor": "every step is in the run's events",
    "comet": "training.report_to lists the available trackers",
    "monitor_config": "training.report_to lists the available trackers",
    "checkpoint": "Paceline writes its own checkpoints, which any strategy can read",
    "nebula": "Paceline writes its own checkpoints, which any strategy can read",
    "datastates_ckpt": "Paceline writes its own checkpoints, which any strategy can read",
    "load_universal_checkpoint": "Paceline writes its own checkpoints, which any strategy can read",
    "dataloader_drop_last": "training.dataloader_drop_last overrides it",
    "compile": "training.torch_compile overrides it",
    "seed": "training.seed overrides it",
    "pipeline": "for pipelines use distributed_strategy: pipeline",
}
_TP_KEYS = (
    "tp_overlap_comm",
    "partition_config",
    "preset_model",
    "injection_policy_tuple",
    "keep_module_on_host",
)
FP16_SCALER = {
    "loss_scale": 0,
    "loss_scale_window": 1000,
    "initial_scale_power": 16,
    "hysteresis": 2,
    "min_loss_scale": 1,
}


def compile_config(
    user: Mapping[str, Json],
    engine: DeepSpeedOptions,
    job: Job,
    batch: BatchSplit,
    precision: Precision,
    findings: Findings,
) -> JsonObject:
    """Return the dict for ``deepspeed.initialize(config=…)``.

    ``train_batch_size`` is left out on purpose: DeepSpeed computes it. Under AutoTP and Ulysses DeepSpeed
    counts ranks differently in two places, so one of them rejects any given product.
    """
    config: JsonObject = _blocks(user, findings)
    config["train_micro_batch_size_per_gpu"] = batch.micro_batch
    config["gradient_accumulation_steps"] = batch.accumulation
    config["gradient_clipping"] = job.training.max_grad_norm
    _batch(user, batch, findings)
    _precision(config, user, engine.zero_stage, precision, findings)
    _ownership(user, job, findings)
    config["zero_optimization"] = zero_optimization(user, engine, job, findings)
    config["zero_allow_untested_optimizer"] = True
    config["zero_force_ds_cpu_optimizer"] = False
    if engine.autotp_size > 1:
        config["tensor_parallel"] = _tensor_parallel(user, engine.autotp_size, findings)
    _activation_checkpointing(user, job, findings)
    return _without_auto(config, findings)


def _blocks(user: Mapping[str, Json], findings: Findings) -> JsonObject:
    """Return the file's blocks that are passed through; refuse or drop the others."""
    passed: JsonObject = {}
    for key, value in user.items():
        if key in _OURS and key != "amp":
            continue
        if key in _REFUSED:
            if _is_on(value):
                findings.refuse(codes.ZERO_NOT_SUPPORTED(KEY, key, key=key, why=_REFUSED[key]))
        elif key in _LEFT_OUT:
            if value not in (None, {}, False) and _is_on(value):
                findings.explain(f"deepspeed {key}", "off", _LEFT_OUT[key], granted=False)
        else:
            passed[key] = copy.deepcopy(value)
    for key in ("comms_logger", "flops_profiler", "wall_clock_breakdown", "memory_breakdown"):
        if key in passed and _is_on(passed[key]):
            findings.explain(
                f"deepspeed {key}",
                "on",
                "requested: DeepSpeed prints its tables, and each step waits for them",
            )
    return passed


def _mapping(user: Mapping[str, Json], key: str) -> JsonObject:
    value = user.get(key)
    return value if isinstance(value, dict) else {}


def _is_on(value: Json) -> bool:
    """Whether a block is enabled; a nested one (compression_training) is if any part is."""
    if not isinstance(value, dict):
        return bool(value)
    if "enabled" in value:
        return value["enabled"] not in (False, "auto", None)
    inner = [part for part in value.values() if isinstance(part, dict)]
    return any(_is_on(part) for part in inner) if inner else bool(value)


def _batch(user: Mapping[str, Json], batch: BatchSplit, findings: Findings) -> None:
    """Report a ``train_batch_size`` that does not match the batch; the product is used instead."""
    total = user.get("train_batch_size")
    if total in (None, "auto", batch.global_batch):
        return
    product = f"{batch.micro_batch} × {batch.accumulation} × {batch.data_parallel_size}"
    findings.explain(
        "train_batch_size",
        str(batch.global_batch),
        f"the file sets {total}, which is not {product} data-parallel ranks; the product is used"
        " (DeepSpeed alone would refuse to start)",
        granted=False,
    )


def _precision(
    config: JsonObject, user: Mapping[str, Json], stage: int, precision: Precision, findings: Findings
) -> None:
    """Set precision from ``training.mixed_precision``, with fp32 masters.

    Gradients are summed in fp32 unless the file names a dtype.
    """
    half = precision.half
    if half and stage == 0:
        findings.explain(
            "deepspeed precision",
            f"{half} outside DeepSpeed",
            "without ZeRO, DeepSpeed's own half precision drifts from the reference; layers compute"
            " with copies of fp32 weights, as under ddp",
        )
        half = ""
    scaler = _mapping(user, "fp16")
    config["bf16"] = {"enabled": half == "bf16"}
    config["fp16"] = {"enabled": half == "fp16"}
    if half == "fp16":
        scaler_values = {k: v for k, v in scaler.items() if k != "enabled" and v != "auto"}
        config["fp16"] = {**FP16_SCALER, **scaler_values, "enabled": True}
    if not half:
        return
    types = _mapping(user, "data_types")
    accumulate = types.get("grad_accum_dtype") or "fp32"
    config["data_types"] = {"grad_accum_dtype": accumulate}
    config.setdefault("communication_data_type", "fp32")
    requested = (
        "requested in the file" if types or "communication_data_type" in user else "as on every strategy"
    )
    findings.explain(
        "deepspeed precision",
        half,
        f"fp32 masters; gradients summed over micro-steps in {accumulate} and over ranks in"
        f" {config['communication_data_type']}: {requested}",
    )


def _ownership(user: Mapping[str, Json], job: Job, findings: Findings) -> None:
    """Report optimizer and scheduler blocks, which DeepSpeed does not get.

    The optimizer is torch's own, and the learning rate a function of the step.
    """
    block = user.get("optimizer")
    if isinstance(block, dict):
        kind = str(block.get("type", ""))
        taken = OPTIMIZERS.get(kind.lower().replace("_", ""), kind.lower()) == job.training.optim
        findings.explain(
            "deepspeed optimizer",
            job.training.optim,
            f"{kind or 'the block'} of the file is read as this optimizer, with the values below;"
            " DeepSpeed receives the optimizer ready-made"
            if taken
            else f"{kind or 'the block'} of the file is not used: training.optim says otherwise",
        )
    block = user.get("scheduler")
    if isinstance(block, dict):
        kind = str(block.get("type", ""))
        findings.explain(
            "deepspeed scheduler",
            job.training.lr_scheduler_type,
            f"{kind} of the file is read as this schedule; DeepSpeed receives the learning rate of each step"
            if SCHEDULES.get(kind.lower()) == job.training.lr_scheduler_type
            else f"{kind or 'the block'} of the file is not used: training.lr_scheduler_type says otherwise",
        )
    if user.get("zero_force_ds_cpu_optimizer") is True:
        findings.explain(
            "zero_force_ds_cpu_optimizer",
            "false",
            "torch's own optimizer is used, fused on a CPU as well; it resumes bit for bit",
            granted=False,
        )


def _tensor_parallel(user: Mapping[str, Json], size: int, findings: Findings) -> JsonObject:
    block = _mapping(user, "tensor_parallel")
    block_config: JsonObject = {"autotp_size": size}
    block_config.update({key: block[key] for key in _TP_KEYS if block.get(key) is not None})
    accepted = {*_TP_KEYS, "autotp_size", "tp_size", "tp", "tensor_parallel", "enabled"}
    own_loss = sorted({"vocab_parallel_lm_head", "vocab_parallel_ce_backend"} & set(block))
    if any(block[key] for key in own_loss):
        findings.explain(
            "tensor_parallel",
            ", ".join(own_loss) + ": off",
            "Paceline computes the loss, with the complete weight of the head",
            granted=False,
        )
    dropped = sorted(set(block) - accepted - set(own_loss))
    if dropped:
        findings.explain(
            "tensor_parallel",
            ", ".join(dropped) + ": off",
            "DeepSpeed has no such keys: AutoTP chooses how each matrix is sharded, and its groups"
            " are always consecutive ranks",
            granted=False,
        )
    return block_config


def _activation_checkpointing(user: Mapping[str, Json], job: Job, findings: Findings) -> None:
    block = user.get("activation_checkpointing")
    if not isinstance(block, dict) or not any(value is True for value in block.values()):
        return
    requested = ", ".join(sorted(key for key, value in block.items() if value is True))
    why = (
        (
            "passed to DeepSpeed; torch recomputes layers (training.gradient_checkpointing) and"
            " keeps their inputs on their device"
        )
        if job.training.gradient_checkpointing
        else (
            "passed to DeepSpeed, where it only configures how its own recomputation stores"
            " activations; training.gradient_checkpointing: true switches recomputation on"
        )
    )
    findings.explain("activation_checkpointing", requested, why, granted=False)


def _without_auto(block: JsonObject, findings: Findings, path: str = "") -> JsonObject:
    """Drop remaining "auto" values, on which DeepSpeed would fail; its defaults apply."""
    values: JsonObject = {}
    for key, item in block.items():
        key_path = f"{path}.{key}" if path else str(key)
        if item == "auto":
            findings.explain(
                key_path, "DeepSpeed's default", '"auto" in the file, and the YAML does not set it'
            )
        else:
            values[key] = _without_auto(item, findings, key_path) if isinstance(item, dict) else item
    return values
