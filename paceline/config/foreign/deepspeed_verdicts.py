"""Keys of DeepSpeed's JSON that are not passed on unchanged: what each means here, or why it is refused.

Keys are dotted paths. REFUSED keys are refused only if they are on; otherwise they are dropped with a note.
"""

from __future__ import annotations

from paceline.core.json_types import Json

_OWN_CHECKPOINTS = "checkpoints are Paceline's own, written and read under plain-model names on any topology"
_GONE = "DeepSpeed 0.19 has removed it and refuses the key"

#: path → (reason, what to write instead)
REFUSED: dict[str, tuple[str, str]] = {
    "compression_training": (
        f"quantisation and pruning in training are not built; {_GONE}",
        "remove the block, or quantise the finished model",
    ),
    "quantize_training": (
        f"mixture of quantisation is not built; {_GONE}",
        "remove the block; for frozen 4-bit weights: quantization_bit: 4 with adapters",
    ),
    "eigenvalue": (f"it steers the mixture of quantisation, which is not built; {_GONE}", "remove the block"),
    "sparse_attention": (
        f"sparse attention changes the model; {_GONE}",
        "remove the block; model.attn_implementation chooses the kernel",
    ),
    "elasticity": (
        f"it would choose the batch size by the number of processes; {_GONE}",
        "train_batch_size, train_micro_batch_size_per_gpu and gradient_accumulation_steps as numbers",
    ),
    "curriculum_learning": (
        f"sequence lengths that grow during training are not built; {_GONE}",
        "remove the block; data.max_length is the length",
    ),
    "progressive_layer_drop": (f"dropping layers changes the model; {_GONE}", "remove the block"),
    "data_efficiency": (
        (
            "curriculum sampling, dynamic batching and random token dropping are not built: the order of rows"
            " is the same under every strategy"
        ),
        "remove the block",
    ),
    "weight_quantization": (
        "quantised initial weights of DeepSpeed are not built",
        "quantization_bit: 4 or 8 with adapters (lora)",
    ),
    "expert_parallel": (
        "expert parallelism is not built",
        "remove the block; the experts are sharded like every other weight",
    ),
    "zero_optimization.mics_shard_size": (
        f"MiCS is gone: {_GONE}",
        "fsdp: hybrid_shard shards inside a node and replicates over nodes",
    ),
    "zero_optimization.mics_hierarchical_params_gather": (f"MiCS is gone: {_GONE}", "fsdp: hybrid_shard"),
    "zero_optimization.zeropp_loco_param": (
        f"error feedback for quantised gradients is gone: {_GONE}",
        "zero_quantized_gradients alone",
    ),
    "fp16.fp16_master_weights_and_grads": ("trained weights keep float32 masters", "remove the key"),
    "bf16.bf16_master_weights_and_grads": ("trained weights keep float32 masters", "remove the key"),
    "bf16.bf16_optimizer_states": (
        "trained weights keep float32 masters and moments",
        "remove the key; zero stage 2 shares the moments out, offload_optimizer keeps them in host memory",
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
    "zero_optimization.legacy_stage1": "the old ZeRO-1 has no code of its own any more",
    "sparse_gradients": (
        "gradients of embeddings are reduced dense, which gives the same result; DeepSpeed 0.19 refuses"
        " the key"
    ),
    "graph_harvesting": "CUDA graphs of DeepSpeed are gone; the result is the same without",
    "autotuning": (
        "DeepSpeed's tuner starts runs of its own (`deepspeed --autotuning`) and has no part in one run;"
        " `paceline plan` shows sizes before a start"
    ),
    "hybrid_engine": (
        "generation runs on the training weights as they are; DeepSpeed's inference kernels are not used"
    ),
    "inference": "settings of DeepSpeed's inference engine, which has no part in training",
    "pipeline": (
        "DeepSpeed reads it for models built as PipelineModule only; here training.parallelism.pp_size makes"
        " pipeline stages of any model"
    ),
    "disable_allgather": "DeepSpeed reads it no more",
    "vocabulary_size": (
        "DeepSpeed only checks that it is a multiple of 8; model.embedding_multiple pads the embedding"
    ),
    "managed_gradient_accumulation": (
        "accumulation is counted by the trainer, the same way under every strategy"
    ),
    "use_data_before_expert_parallelism": "it orders expert groups, of which there are none",
    "fp16.auto_cast": "inputs are token ids, which are not cast",
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
        "ZenFlow applies part of the gradients late to hide the offload; here every gradient is applied in"
        " its own step, as ZeRO-Offload does"
    ),
}

#: path → note on a key that is passed on, if it is on
SAID: dict[str, str] = {
    "activation_checkpointing": (
        "kept; these options act in models that call deepspeed.checkpointing themselves. Recomputation is"
        " turned on by training.gradient_checkpointing"
    ),
    "zero_optimization.zero_quantized_weights": (
        "lossy: weights travel in 8 bits between the devices; needs CUDA"
    ),
    "zero_optimization.zero_quantized_gradients": (
        "lossy: gradients travel in 4 bits between the devices; needs CUDA"
    ),
    "zero_optimization.zero_quantized_nontrainable_weights": (
        "lossy: frozen weights are kept in 8 bits; needs CUDA"
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
    "onebitadam": "1-bit Adam is Adam with moments sent in one bit",
    "zerooneadam": "0/1 Adam is Adam with moments sent in one bit, or not at all",
}
NO_OPTIMIZER = {
    "onebitlamb": "1-bit LAMB sends compressed moments, so losses would differ from every other strategy",
    "lamb": "LAMB is not built",
    "muadam": "µP optimizers need a model parametrised by mup",
    "muadamw": "µP optimizers need a model parametrised by mup",
    "musgd": "µP optimizers need a model parametrised by mup",
    "muon": "Muon is not built",
    "adafactor": (
        "DeepSpeed takes torch's Adafactor, whose update is another one than Transformers' (training.optim:"
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
