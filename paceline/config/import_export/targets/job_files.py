"""DeepSpeed's and Accelerate's files: how the job is distributed."""

from __future__ import annotations

from paceline.config.schema import Config
from paceline.core.json_types import JsonObject, as_object
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
