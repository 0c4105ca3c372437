"""DeepSpeed's JSON as the lowest layer: learning rate, batch, accumulation, clipping, precision, optimizer, schedule. ``"auto"`` means not set."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from paceline.config.foreign.layer import Document, Foreign
from paceline.config.source import shown
from paceline.core.diagnostics import Diagnostic

# Top-level keys that DeepSpeed 0.19 reads (runtime/config.py and the sub-configs it names).
KNOWN = frozenset(
    [
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "optimizer",
        "scheduler",
        "fp16",
        "bf16",
        "bfloat16",
        "amp",
        "torch_autocast",
        "gradient_clipping",
        "prescale_gradients",
        "gradient_predivide_factor",
        "sparse_gradients",
        "communication_data_type",
        "seq_parallel_communication_data_type",
        "zero_optimization",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "steps_per_print",
        "wall_clock_breakdown",
        "dump_state",
        "memory_breakdown",
        "tensorboard",
        "wandb",
        "csv_monitor",
        "comet",
        "monitor_config",
        "flops_profiler",
        "activation_checkpointing",
        "sparse_attention",
        "data_efficiency",
        "curriculum_learning",
        "curriculum_seqlen",
        "data_types",
        "elasticity",
        "autotuning",
        "comms_logger",
        "compression_training",
        "quantize_training",
        "pipeline",
        "checkpoint",
        "aio",
        "nebula",
        "hybrid_engine",
        "eigenvalue",
        "progressive_layer_drop",
        "use_node_local_storage",
        "load_universal_checkpoint",
        "disable_allgather",
        "allgather_size",
        "fp32_allreduce",
        "graph_harvesting",
        "tensor_parallel",
        "sequence_parallel_size",
        "data_parallel_size",
        "timers",
        "weight_quantization",
        "compile",
        "zenflow",
        "datastates_ckpt",
        "use_data_before_expert_parallelism",
        "use_data_before_expert_parallel",
        "dataloader_drop_last",
        "gradient_allreduce_op",
        "vocabulary_size",
        "expert_parallel",
        "zero_optimization_stage",
        "loss_scale",
        "initial_dynamic_scale",
        "autoep",
        "mics_shard_size",
        "seed",
    ]
)
_OPTIMIZERS = {"adamw": "adamw_torch_fused", "adam": "adamw_torch_fused", "sgd": "sgd", "adagrad": "adagrad"}
_SCHEDULES = {"WarmupLR": "constant_with_warmup", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}


def read(document: Document, found: Foreign) -> None:
    """Adds this document's settings to the lowest layer, and names what is wrong with or not taken from it."""
    data = document.data
    _unknown(document, found)
    found.entries.append(document.entry("training.distributed_strategy", "deepspeed", next(iter(data), "")))
    for key, to in (
        ("train_micro_batch_size_per_gpu", "training.per_device_train_batch_size"),
        ("gradient_accumulation_steps", "training.gradient_accumulation_steps"),
        ("gradient_clipping", "training.max_grad_norm"),
    ):
        if _given(data.get(key)):
            found.entries.append(document.entry(to, data[key], key))
    if _given(data.get("train_batch_size")):
        what = f"train_batch_size {shown('', data['train_batch_size'])} is not taken: the global batch is micro-batch x accumulation x processes"
        found.notes.append(document.note("train_batch_size", what, '"auto"'))
    for name in ("fp16", "bf16", "bfloat16"):
        block = data.get(name)
        if isinstance(block, dict) and _given(block.get("enabled")):
            found.entries.append(
                document.entry(f"training.{'fp16' if name == 'fp16' else 'bf16'}", block["enabled"], f"{name}.enabled")
            )
    _optimizer(document, found)
    _scheduler(document, found)


def _given(value: Any) -> bool:
    return value is not None and value != "auto"


def _unknown(document: Document, found: Foreign) -> None:
    for key in document.data:
        if key in KNOWN:
            continue
        near = difflib.get_close_matches(key, sorted(KNOWN), n=1)
        found.problems.append(
            Diagnostic(
                "zero.unknown_toplevel", f"DeepSpeed knows no key '{key}' and would ignore it silently", where=document.place(key),
                found=key, hint=f"did you mean '{near[0]}'?" if near else "remove it",
            )
        )  # fmt: skip


def _block(document: Document, name: str, found: Foreign) -> tuple[str, dict[str, Any]] | None:
    block = document.data.get(name)
    if block is None or block == "auto":
        return None
    if not isinstance(block, dict):
        found.problems.append(
            Diagnostic(
                "config.type",
                f"{name} must be a mapping",
                where=document.place(name),
                found=shown(name, block),
                hint='{"type": …, "params": {…}}',
            )
        )
        return None
    params = block.get("params")
    return str(block.get("type", "")), params if isinstance(params, dict) else {}


def _optimizer(document: Document, found: Foreign) -> None:
    block = _block(document, "optimizer", found)
    if block is None:
        return
    kind, params = block
    if kind.lower() in _OPTIMIZERS:
        found.entries.append(document.entry("training.optim", _OPTIMIZERS[kind.lower()], "optimizer.type"))
    elif kind != "auto":
        found.notes.append(
            document.note(
                "optimizer.type",
                f"DeepSpeed's optimizer {kind} has no counterpart outside DeepSpeed; training.optim decides there",
            )
        )
    for key, to in (("lr", "learning_rate"), ("eps", "adam_epsilon"), ("weight_decay", "weight_decay")):
        if _given(params.get(key)):
            found.entries.append(document.entry(f"training.{to}", params[key], f"optimizer.params.{key}"))
    betas = params.get("betas")
    if isinstance(betas, list) and len(betas) == 2:
        for index, to in enumerate(("adam_beta1", "adam_beta2")):
            if _given(betas[index]):
                found.entries.append(document.entry(f"training.{to}", betas[index], "optimizer.params.betas"))


def _scheduler(document: Document, found: Foreign) -> None:
    block = _block(document, "scheduler", found)
    if block is None:
        return
    kind, params = block
    if kind in _SCHEDULES:
        found.entries.append(document.entry("training.lr_scheduler_type", _SCHEDULES[kind], "scheduler.type"))
    else:
        found.notes.append(
            document.note(
                "scheduler.type",
                f"the schedule {kind or '(no type)'} is not taken over; training.lr_scheduler_type decides",
                '"WarmupLR", "WarmupDecayLR" or "WarmupCosineLR"',
            )
        )
    if _given(params.get("warmup_num_steps")):
        found.entries.append(
            document.entry("training.warmup_steps", params["warmup_num_steps"], "scheduler.params.warmup_num_steps")
        )
    peak = params.get("warmup_max_lr")
    optimizer_lr = next(_learning_rates(found), None)
    if _given(peak) and optimizer_lr is None:
        found.entries.append(document.entry("training.learning_rate", peak, "scheduler.params.warmup_max_lr"))
    elif _given(peak) and peak != optimizer_lr:
        found.notes.append(
            document.note(
                "scheduler.params.warmup_max_lr",
                f"warmup_max_lr {peak} is not taken: optimizer.params.lr says {optimizer_lr}",
                '"auto"',
            )
        )
    if params.get("warmup_min_lr") not in (None, "auto", 0, 0.0):
        found.notes.append(
            document.note("scheduler.params.warmup_min_lr", "warm-up starts from 0 here, not from warmup_min_lr")
        )


def _learning_rates(found: Foreign) -> Iterator[Any]:
    return (entry.value for entry in found.entries if entry.path == "training.learning_rate")
