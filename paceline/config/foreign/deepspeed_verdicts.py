"""Keys of DeepSpeed's JSON that are not passed on unchanged: what each means here, or why it is refused.

Keys are dotted paths. REFUSED keys are refused only if they are on; otherwise they are dropped with a note.
"""

from __future__ import annotations

from paceline.core.json_types import Json

_OWN_CHECKPOINTS = "Paceline writes its own checkpoints, under plain-model names that any topology can read"
_GONE = "DeepSpeed 0.19 has removed it and refuses the key"

#: path → (reason, what to write instead)
REFUSED: dict[str, tuple[str, str]] = {
    "compression_training": (
        f"quantisation and pruning during training are not supported; {_GONE}",
        "remove the block, or quantise the finished model",
    ),
    "quantize_training": (
        f"mixture of quantisation is not supported; {_GONE}",
        "remove the block; for frozen 4-bit weights set quantization_bit: 4 with adapters",
    ),
    "eigenvalue": (
        f"it controls the mixture of quantisation, which is not supported; {_GONE}",
        "remove the block",
    ),
    "sparse_attention": (
        f"sparse attention changes the model; {_GONE}",
        "remove the block; model.attn_implementation chooses the kernel",
    ),
    "elasticity": (
        f"it would change the batch size with the number of processes; {_GONE}",
        ("set train_batch_size, train_micro_batch_size_per_gpu and gradient_accumulation_steps to numbers"),
    ),
    "curriculum_learning": (
        f"sequence lengths that grow during training are not supported; {_GONE}",
        "remove the block; data.max_length sets the length",
    ),
    "progressive_layer_drop": (f"skipping layers changes the model; {_GONE}", "remove the block"),
    "data_efficiency": (
        (
            "curriculum sampling, dynamic batching and random token dropping are not supported: the"
            " order of rows is the same under every strategy"
        ),
        "remove the block",
    ),
    "weight_quantization": (
        "DeepSpeed's quantised initial weights are not supported",
        "set quantization_bit: 4 or 8 with adapters (lora)",
    ),
    "expert_parallel": (
        "expert parallelism is not supported",
        "remove the block; experts are sharded like all other weights",
    ),
    "zero_optimization.mics_shard_size": (
        f"MiCS is not available: {_GONE}",
        "set fsdp: hybrid_shard, which shards inside a node and replicates over nodes",
    ),
    "zero_optimization.mics_hierarchical_params_gather": (
        f"MiCS is not available: {_GONE}",
        "set fsdp: hybrid_shard",
    ),
    "zero_optimization.zeropp_loco_param": (
        f"error feedback for quantised gradients is not available: {_GONE}",
        "use zero_quantized_gradients alone",
    ),
    "fp16.fp16_master_weights_and_grads": (
        "trained weights always have float32 master copies",
        "remove the key",
    ),
    "bf16.bf16_master_weights_and_grads": (
        "trained weights always have float32 master copies",
        "remove the key",
    ),
    "bf16.bf16_optimizer_states": (
        "trained weights always have float32 master copies and moments",
        "remove the key; ZeRO stage 2 shards the moments, offload_optimizer keeps them in host memory",
    ),
}

#: path → why it is dropped; the result does not depend on it
DROPPED: dict[str, str] = {
    "nebula": _OWN_CHECKPOINTS,
    "datastates_ckpt": _OWN_CHECKPOINTS,
    "checkpoint": _OWN_CHECKPOINTS,
    "zero_optimization.load_from_fp32_weights": _OWN_CHECKPOINTS,
    "zero_optimization.elastic_checkpoint": _OWN_CHECKPOINTS,
    "zero_optimization.pipeline_loading_checkpoint": _OWN_CHECKPOINTS,
    "zero_optimization.legacy_stage1": "DeepSpeed no longer has a separate implementation of the old ZeRO-1",
    "sparse_gradients": (
        "gradients of embeddings are reduced as dense tensors, with the same result; DeepSpeed 0.19"
        " refuses the key"
    ),
    "graph_harvesting": "DeepSpeed's CUDA graphs no longer exist; the result is the same without them",
    "autotuning": (
        "DeepSpeed's autotuner starts its own runs (`deepspeed --autotuning`) and does not apply to"
        " a single run; `paceline plan` shows sizes before a start"
    ),
    "hybrid_engine": (
        "generation uses the training weights directly; DeepSpeed's inference kernels are not used"
    ),
    "inference": "these are settings of DeepSpeed's inference engine, which is not used in training",
    "pipeline": (
        "DeepSpeed reads it for models built as PipelineModule only; here"
        " training.parallelism.pp_size splits any model into pipeline stages"
    ),
    "disable_allgather": "DeepSpeed no longer reads it",
    "vocabulary_size": (
        "DeepSpeed only checks that it is a multiple of 8; model.embedding_multiple pads the embedding"
    ),
    "managed_gradient_accumulation": (
        "the trainer counts accumulation steps, the same way under every strategy"
    ),
    "use_data_before_expert_parallelism": "it orders expert-parallel groups, which do not exist here",
    "fp16.auto_cast": "inputs are token ids, which are not cast to another dtype",
}

#: keys found at the top level of published files that no version of DeepSpeed reads there
IGNORED = frozenset(
    [
        "comms_config",
        "monitor_config",
        "autotuning_config",
        "gradient_checkpointing",
        "model_parallel_size",
        "data_parallel_size",
    ]
)

#: path → what is done instead: the feature trades exactness for speed or memory; the exact result is computed
NOT_GRANTED: dict[str, str] = {
    "zero_optimization.zenflow": (
        "ZenFlow applies part of the gradients in a later step to hide the offload; here every"
        " gradient is applied in its own step, as in ZeRO-Offload"
    ),
}

#: path → note on a key that is passed on, if it is on
SAID: dict[str, str] = {
    "activation_checkpointing": (
        "kept; these options affect only models that call deepspeed.checkpointing themselves."
        " training.gradient_checkpointing switches recomputation on"
    ),
    "zero_optimization.zero_quantized_weights": (
        "lossy: weights are sent between devices in 8 bits; needs CUDA"
    ),
    "zero_optimization.zero_quantized_gradients": (
        "lossy: gradients are sent between devices in 4 bits; needs CUDA"
    ),
    "zero_optimization.zero_quantized_nontrainable_weights": (
        "lossy: frozen weights are stored in 8 bits; needs CUDA"
    ),
}

#: the JSON's optimizer in lower case → training.optim
OPTIMIZERS: dict[str, str] = {
    "adamw": "adamw_torch_fused",
    "adam": "adamw_torch_fused",
    "fusedadam": "adamw_torch_fused",
    "cpuadam": "adamw_torch_fused",
    "deepspeedcpuadam": "adamw_torch_fused",
    "sgd": "sgd",
    "adagrad": "adagrad",
    "lion": "lion_32bit",
    "rmsprop": "rmsprop",
}
#: Adams with compressed communication → the note; exact AdamW is computed instead
COMPRESSED = {
    "onebitadam": "1-bit Adam is Adam whose moments are sent in one bit",
    "zerooneadam": "0/1 Adam is Adam whose moments are sent in one bit, or not at all",
}
NO_OPTIMIZER = {
    "onebitlamb": "1-bit LAMB sends compressed moments, so its losses would differ from every other strategy",
    "lamb": "LAMB is not supported",
    "muadam": "µP optimizers need a model parametrised with mup",
    "muadamw": "µP optimizers need a model parametrised with mup",
    "musgd": "µP optimizers need a model parametrised with mup",
    "muon": "Muon is not supported",
    "adafactor": (
        "DeepSpeed uses torch's Adafactor, whose update differs from Transformers' (training.optim:"
        " adafactor)"
    ),
}
#: the JSON's schedule in lower case → training.lr_scheduler_type
SCHEDULES = {
    "warmuplr": "warmup_lr",
    "warmupdecaylr": "warmup_decay_lr",
    "warmupcosinelr": "warmup_cosine_lr",
    "onecycle": "one_cycle",
    "lrrangetest": "lr_range_test",
}
NO_SCHEDULE: dict[str, str] = {}

#: block → {name in older versions: current name}
RENAMED: dict[str, dict[str, str]] = {
    "": {"bfloat16": "bf16"},
    "zero_optimization": {
        "stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
        "gather_16bit_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
        **{
            name: f"stage3_{name}"
            for name in (
                "prefetch_bucket_size",
                "param_persistence_threshold",
                "model_persistence_threshold",
                "max_live_parameters",
                "max_reuse_distance",
                "module_granularity_threshold",
                "use_all_reduce_for_fetch_params",
                "allgather_sequential",
            )
        },
    },
    "bf16": {"check_overflow": "check_grad_overflow"},
    "tensor_parallel": {"tensor_parallel": "tp", "kernel_inject": "replace_with_kernel_inject"},
    "activation_checkpointing": {"partitioned_activations": "partition_activations"},
}
#: prefixes of keys in LLaMA-Factory's AutoTP guide that DeepSpeed does not have
AUTOTP_DECIDES = (
    "tp_consecutive",
    "tp_linear_layer",
    "tp_embedding_layer",
    "tp_attention",
    "tp_mlp",
    "pp_partition",
)
#: keys of the fp16 block often found in the bf16 block; older versions ignored them, 0.19 refuses them
LOSS_SCALE = frozenset(
    [
        "loss_scale",
        "initial_scale_power",
        "loss_scale_window",
        "hysteresis",
        "consecutive_hysteresis",
        "min_loss_scale",
        "auto_cast",
        "opt_level",
        "loss_scaling",
    ]
)


def is_on(value: Json) -> bool:
    """Whether a value turns its feature on.

    For a block ``enabled`` decides: its own, or without one any nested block's.
    """
    if isinstance(value, dict):
        if "enabled" in value:
            return value["enabled"] is True or str(value["enabled"]).lower() in ("true", "1")
        return (
            any(is_on(item) for item in value.values() if _switched(item))
            if _switched(value)
            else bool(value)
        )
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value > 0
    return value not in (None, False, "", "auto", "false", "False", "none")


def _switched(value: Json) -> bool:
    """Whether the value contains an ``enabled`` at any depth."""
    return isinstance(value, dict) and ("enabled" in value or any(_switched(item) for item in value.values()))
