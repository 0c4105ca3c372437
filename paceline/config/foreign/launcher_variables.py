"""Every environment variable that ``accelerate launch`` (0.10 to 1.15) sets, and how it is treated here.

``READ``: variable → (path in the YAML of ``accelerate config``, the launcher's default; None: it is set only
if the user gave it). ``SAID``: variable → why it has no effect; reported if its value would have one.
``OTHERS``: read by torch, NCCL, OpenMP or the rendezvous; passed on unchanged. ``REFUSED``: not supported.
"""

from __future__ import annotations

_FSDP = {
    "VERSION": ("fsdp_version", "1"),
    "SHARDING_STRATEGY": ("fsdp_sharding_strategy", "FULL_SHARD"),
    "RESHARD_AFTER_FORWARD": ("fsdp_reshard_after_forward", "true"),
    "OFFLOAD_PARAMS": ("fsdp_offload_params", "false"),
    "MIN_NUM_PARAMS": ("fsdp_min_num_params", "100000000"),
    "AUTO_WRAP_POLICY": ("fsdp_auto_wrap_policy", None),
    "TRANSFORMER_CLS_TO_WRAP": ("fsdp_transformer_layer_cls_to_wrap", None),
    "BACKWARD_PREFETCH": ("fsdp_backward_prefetch", None),
    "STATE_DICT_TYPE": ("fsdp_state_dict_type", None),
    "FORWARD_PREFETCH": ("fsdp_forward_prefetch", "false"),
    "USE_ORIG_PARAMS": ("fsdp_use_orig_params", "true"),
    "CPU_RAM_EFFICIENT_LOADING": ("fsdp_cpu_ram_efficient_loading", "true"),
    "SYNC_MODULE_STATES": ("fsdp_sync_module_states", "true"),
    "ACTIVATION_CHECKPOINTING": ("fsdp_activation_checkpointing", "false"),
    "ACTIVATION_CHECKPOINTING_OFFLOAD": ("fsdp_activation_checkpointing_offload", "false"),
    "IGNORED_MODULES": ("fsdp_ignored_modules", None),
}
_DEEPSPEED = {
    "ZERO_STAGE": "zero_stage",
    "OFFLOAD_OPTIMIZER_DEVICE": "offload_optimizer_device",
    "OFFLOAD_PARAM_DEVICE": "offload_param_device",
    "OFFLOAD_OPTIMIZER_NVME_PATH": "offload_optimizer_nvme_path",
    "OFFLOAD_PARAM_NVME_PATH": "offload_param_nvme_path",
    "ZERO3_INIT": "zero3_init_flag",
    "ZERO3_SAVE_16BIT_MODEL": "zero3_save_16bit_model",
    "CONFIG_FILE": "deepspeed_config_file",
    "MOE_LAYER_CLS_NAMES": "deepspeed_moe_layer_cls_names",
}
_MEGATRON = {
    "TP_DEGREE": "1",
    "PP_DEGREE": "1",
    "GRADIENT_CLIPPING": "1.0",
    "USE_CUSTOM_FSDP": "false",
    "NO_LOAD_OPTIM": "false",
    "EOD_MASK_LOSS": "false",
    "NO_SAVE_OPTIM": "false",
    "OPTIMIZER_CPU_OFFLOAD": "false",
    "USE_PRECISION_AWARE_OPTIMIZER": "false",
    "OVERLAP_CPU_OPTIMIZER_D2H_H2D": "false",
    "DECODER_LAST_PIPELINE_NUM_LAYERS": None,
    "NUM_MICRO_BATCHES": None,
    "SEQUENCE_PARALLELISM": None,
    "RECOMPUTE_ACTIVATIONS": None,
    "USE_DISTRIBUTED_OPTIMIZER": None,
    "RECOMPUTE_GRANULARITY": None,
    "RECOMPUTE_METHOD": None,
    "RECOMPUTE_NUM_LAYERS": None,
    "ATTENTION_BACKEND": None,
    "EXPERT_MODEL_PARALLEL_SIZE": None,
    "CONTEXT_PARALLEL_SIZE": None,
    "ATTENTION_DROPOUT": None,
    "HIDDEN_DROPOUT": None,
    "ATTENTION_SOFTMAX_IN_FP32": None,
    "EXPERT_TENSOR_PARALLEL_SIZE": None,
    "CALCULATE_PER_TOKEN_LOSS": None,
    "USE_ROTARY_POSITION_EMBEDDINGS": None,
}
_MESH = {
    "DP_REPLICATE_SIZE": "1",
    "DP_SHARD_SIZE": "1",
    "TP_SIZE": "1",
    "CP_SIZE": "1",
    "CP_BACKEND": "torch",
    "CP_COMM_STRATEGY": "allgather",
    "SP_SIZE": "1",
    "SP_BACKEND": "deepspeed",
    "SP_SEQ_LENGTH": "none",
    "SP_SEQ_LENGTH_IS_VARIABLE": "true",
    "SP_ATTN_IMPLEMENTATION": "sdpa",
}
_FP8 = (
    "BACKEND",
    "USE_AUTOCAST_DURING_EVAL",
    "MARGIN",
    "INTERVAL",
    "FORMAT",
    "AMAX_HISTORY_LEN",
    "AMAX_COMPUTE_ALGO",
    "OVERRIDE_FPROP",
    "OVERRIDE_DGRAD",
    "OVERRIDE_WGRAD",
    "OPT_LEVEL",
    "ENABLE_FSDP_FLOAT8_ALL_GATHER",
    "PAD_INNER_DIM",
    "USE_MXFP8_BLOCK_SCALING",
)

READ: dict[str, tuple[str, str | None]] = {
    "ACCELERATE_MIXED_PRECISION": ("mixed_precision", "no"),
    "ACCELERATE_USE_CPU": ("use_cpu", "false"),
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": ("gradient_accumulation_steps", "auto"),
    "ACCELERATE_GRADIENT_CLIPPING": ("gradient_clipping", "auto"),
    "ACCELERATE_DEBUG_MODE": ("debug", "false"),
    "ACCELERATE_CPU_AFFINITY": ("enable_cpu_affinity", "false"),
    "ACCELERATE_DYNAMO_BACKEND": ("dynamo_config.dynamo_backend", "no"),
    "ACCELERATE_DYNAMO_MODE": ("dynamo_config.dynamo_mode", "default"),
    **{
        f"ACCELERATE_DYNAMO_USE_{word}": (f"dynamo_config.dynamo_use_{word.lower()}", "false")
        for word in ("FULLGRAPH", "DYNAMIC", "REGIONAL_COMPILATION")
    },
    **{f"ACCELERATE_DEEPSPEED_{name}": (f"deepspeed_config.{key}", None) for name, key in _DEEPSPEED.items()},
    **{f"FSDP_{name}": (f"fsdp_config.{key}", default) for name, (key, default) in _FSDP.items()},
    **{
        f"MEGATRON_LM_{name}": (f"megatron_lm_config.megatron_lm_{name.lower()}", default)
        for name, default in _MEGATRON.items()
    },
    **{
        f"PARALLELISM_CONFIG_{name}": (f"parallelism_config.parallelism_config_{name.lower()}", default)
        for name, default in _MESH.items()
    },
    **{f"ACCELERATE_FP8_{name}": (f"fp8_config.{name.lower()}", None) for name in _FP8},
}
#: variable → (the block of READ that it switches on, that block's distributed_type)
SWITCHES = {
    "ACCELERATE_USE_DEEPSPEED": ("deepspeed_config", "DEEPSPEED"),
    "ACCELERATE_USE_FSDP": ("fsdp_config", "FSDP"),
    "ACCELERATE_USE_MEGATRON_LM": ("megatron_lm_config", "MEGATRON_LM"),
    "ACCELERATE_USE_PARALLELISM_CONFIG": ("parallelism_config", ""),
}
_DEVICES = "this kind of device is not supported"
_TORCHS = "each process uses the accelerator that torch sees; training.use_cpu selects the CPU"
SAID: dict[str, str] = {
    **dict.fromkeys(
        (
            "MLU_VISIBLE_DEVICES",
            "SDAA_VISIBLE_DEVICES",
            "MUSA_VISIBLE_DEVICES",
            "HABANA_VISIBLE_MODULES",
            "NEURON_RT_VISIBLE_CORES",
        ),
        _DEVICES,
    ),
    **dict.fromkeys(
        ("XLA_USE_BF16", "XLA_DOWNCAST_BF16", "ACCELERATE_DOWNCAST_BF16"),
        "it is for TPUs and other XLA devices, which are not supported",
    ),
    "ACCELERATE_TORCH_DEVICE": (
        "each process uses the device of its local rank; training.use_cpu selects the CPU"
    ),
    "ACCELERATE_USE_IPEX": "Intel's extension is not used; torch itself computes on the CPU",
    **dict.fromkeys(("ACCELERATE_USE_XPU", "ACCELERATE_USE_MPS_DEVICE"), _TORCHS),
    "ACCELERATE_ALLOW_CP_STANDALONE": "Paceline uses its own context parallelism",
    "ACCELERATE_BYPASS_DEVICE_MAP": "each process holds its own model, so there is no device map",
}
REFUSED: dict[str, str] = {
    "ACCELERATE_IN_TPU_POD": "TPUs and other XLA devices are not supported",
    "ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE": (
        "SageMaker's data-parallel library is not used; start the processes with torchrun inside the job"
    ),
}
#: accelerate's internal variables, and variables read by other programs
OTHERS = frozenset(
    [
        "ACCELERATE_CONFIG_DS_FIELDS",
        "ACCELERATE_USE_SAGEMAKER",
        "ACCELERATE_DEBUG_RDV_FILE",
        "ACCELERATE_LOG_LEVEL",
        "FORK_LAUNCHED",
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANK",
        "LOCAL_RANK",
        "OMP_NUM_THREADS",
        "KMP_AFFINITY",
        "KMP_BLOCKTIME",
        "CCL_WORKER_COUNT",
        "CUDA_VISIBLE_DEVICES",
        "ZE_AFFINITY_MASK",
        "ASCEND_RT_VISIBLE_DEVICES",
        "NCCL_P2P_DISABLE",
        "NCCL_IB_DISABLE",
        "PYTHONPATH",
        "PYTORCH_ENABLE_MPS_FALLBACK",
        "AWS_DEFAULT_REGION",
        "AWS_PROFILE",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
    ]
)
#: variables that accelerate before 0.16 set without its prefix
OLD = (
    "MIXED_PRECISION",
    "USE_CPU",
    "USE_DEEPSPEED",
    "USE_FSDP",
    "USE_MPS_DEVICE",
    "GRADIENT_ACCUMULATION_STEPS",
    "GRADIENT_CLIPPING",
    "DEEPSPEED_ZERO_STAGE",
    "DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    "DEEPSPEED_ZERO3_INIT",
    "DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
    "DEEPSPEED_CONFIG_FILE",
)
_MARKS = (
    "ACCELERATE_MIXED_PRECISION",
    *SWITCHES,
    *(f"ACCELERATE_{name}" for name in ("USE_CPU", "DYNAMO_BACKEND", "GRADIENT_ACCUMULATION_STEPS")),
)


def with_todays_names(environ: dict[str, str]) -> dict[str, str]:
    """Return the environment with the variables of accelerate before 0.16 under their current names too.

    Only if accelerate has set them, i.e. torchrun's or its own variables are present.
    """
    marks = "TORCHELASTIC_RUN_ID" in environ or "USE_CPU" in environ
    old = "MIXED_PRECISION" in environ and "ACCELERATE_MIXED_PRECISION" not in environ and marks
    half = "ACCELERATE_USE_DEEPSPEED" in environ and "ACCELERATE_DEEPSPEED_ZERO_STAGE" not in environ
    if not (old or (half and "DEEPSPEED_ZERO_STAGE" in environ)):
        return environ
    return {**{f"ACCELERATE_{name}": environ[name] for name in OLD if name in environ}, **environ}


def by_accelerate(environ: dict[str, str]) -> bool:
    """Whether ``accelerate launch`` has set any variable."""
    return any(name in environ for name in _MARKS)
