"""axolotl's optional features: off, their keys have no effect; on, they act the same, or cannot be kept."""

from __future__ import annotations

from paceline.config.exchange.common import KERNEL, LOGGED
from paceline.config.exchange.reading import KeyReader

_KERNELS = (
    "liger_",
    "cut_cross_entropy",
    "chunked_cross_entropy",
    "use_kernels",
    "experts_implementation",
    "use_scattermoe",
    "use_sonicmoe",
    "tiled_mlp",
    "moe_grouped_backend",
    "llama4_linearized_experts",
    "large_head_attention",
    "unsloth_",
    "gemma4_hybrid_attn_impl",
    "use_glm_dsa_kernels",
    "use_dsv4_kernels",
    "s2_attention_kernel",
    "deepcompile",
)
_MEMORY = (
    "gc_steps",
    "gc_collect_steps",
    "torch_empty_cache_steps",
    "max_memory",
    "gpu_memory_limit",
    "low_cpu_mem_usage",
    "experimental_skip_move_to_device",
    "ple_cpu_offload",
    "ddp_",
    "base_model_ignore_patterns",
    "embeddings_skip_upcast",
    "resize_token_embeddings_to_32x",
    "mean_resizing_embeddings",
    "remove_unused_columns",
)
_LOGGED = (
    "eval_table_size",
    "eval_max_new_tokens",
    "eval_table_max_new_tokens",
    "do_causal_lm_eval",
    "eval_causal_lm_metrics",
    "include_tokens_per_second",
    "include_tkps",
    "profiler_",
    "generate_samples",
    "num_generation_samples",
    "generation_",
    "debug",
    "strict",
    "do_bench_eval",
    "bench_",
    "save_first_step",
    "lm_eval_",
    "axolotl_config_path",
)
_DERIVED = (
    "is_falcon_derived_model",
    "is_llama_derived_model",
    "is_mistral_derived_model",
    "is_qwen_derived_model",
    "model_type",
    "type_of_model",
    "tokenizer_type",
    "tokenizer_use_fast",
    "tokenizer_legacy",
    "tokenizer_save_jinja_files",
    "full_finetune",
    "base_model_config",
    "cls_model_config",
    "tokenizer_use_mistral_common",
)
_RAY = ("use_ray", "ray_", "resources_per_worker")
_PLUGINS_OF_KERNELS = ("CutCrossEntropyPlugin", "LigerPlugin", "KernelsPlugin", "CompilePlugin")
#: switch → (the beginnings of its keys, why it cannot be kept)
_SWITCHES = {
    "ebft": (("ebft",), "EBFT is not supported"),
    "qat": (("qat",), "quantisation-aware training is not supported"),
    "llmcompressor": (("llmcompressor",), "training a sparse model by llm-compressor is not supported"),
    "hatchery": (("hatchery",), "remote training services are not used"),
    "nemo_gym_enabled": (("nemo_gym_",), "NeMo Gym's environments are not supported"),
    "diffusion": (("diffusion",), "diffusion models are not supported"),
    "use_eaft": (("use_eaft", "eaft_"), "the EAFT loss is not supported"),
    "kd_trainer": (("kd_",), "set algorithm: distillation"),
    "neftune_noise_alpha": (("neftune_noise_alpha",), "NEFTune noise is not supported"),
    "noisy_embedding_alpha": (("noisy_embedding_alpha",), "NEFTune noise is not supported"),
    "quantize_moe_experts": (("quantize_moe_experts",), "quantised experts are not supported"),
    "model_quantization_config": (
        ("model_quantization_config",),
        "bases that are stored quantised are not supported",
    ),
    "loss_watchdog_threshold": (("loss_watchdog_",), ""),
    "overrides_of_model_config": (("overrides_of_model_config",), "set the model's config.json"),
    "model_config": (("model_config",), "set the model's config.json"),  # axolotl's alias of it
    "overrides_of_model_kwargs": (("overrides_of_model_kwargs",), "arguments of from_pretrained"),
    "model_kwargs": (("model_kwargs",), "arguments of from_pretrained"),
    "use_pose": (("use_pose", "pose_"), "PoSE is not supported"),
    "freeze_mm_modules": (("freeze_mm_modules", "image_", "role_boundaries"), "images are not read"),
    "nvfp4_merge_aware": (("nvfp4_",), "NVFP4 bases are not supported"),
    "nonexpert_quantization": (
        ("nonexpert_quantization", "dsv4_", "gemma4_"),
        "quantised bases of this kind are not supported",
    ),
    "fp8": (("fp8",), ""),
    "expert_parallel_size": (("expert_parallel_",), ""),
    "dataset_exact_deduplication": (
        ("dataset_exact_deduplication",),
        "rows are not compared with each other",
    ),
    "fix_untrained_tokens": (("fix_untrained_tokens",), "untrained rows of the embedding keep their values"),
    "dataset_shard_num": (("dataset_shard_num", "dataset_shard_idx"), ""),
    "min_sample_len": (("min_sample_len",), "short rows are not left out"),
    "s2_attention": (("s2_attention",), "shifted sparse attention changes the model"),
    "group_by_length": (("group_by_length",), "rows are permuted by seed"),
    "auto_find_batch_size": (("auto_find_batch_size",), "the batch size is the one in the config"),
    "max_packed_sequence_len": (
        ("max_packed_sequence_len",),
        "axolotl 0.19 refuses it: sequence_len with sample_packing",
    ),
    "reinit_weights": (("reinit_weights",), "set model.config for a model trained from scratch"),
    "scaling_softmax": (("scaling_softmax",), "scaled softmax changes the model"),
    "gptq_model_v1": (("gptq_model_v1",), "GPTQ bases are not trained"),
}


def switched(reading: KeyReader) -> None:
    """Decide the keys of optional features."""
    reading.nothing(_open(reading, _KERNELS), KERNEL)
    reading.nothing(_open(reading, _MEMORY), "it saves memory or time; the training is the same")
    reading.nothing(_open(reading, _LOGGED), LOGGED)
    reading.nothing(_open(reading, _DERIVED), "classes follow from the model's config.json")
    reading.nothing(_open(reading, _RAY), "the launcher starts the processes, without Ray")
    _plugins(reading)
    if reading.on("fp8"):
        reading.keep("fp8", "training.fp8", True)
    reading.nothing(
        _open(reading, ("expert_parallel_",)),
        "experts are sharded like all other weights; the sums are the same",
    )
    _images(reading)
    if reading.is_given("batch_size"):
        _batch(reading)
    for switch, (prefixes, why) in _SWITCHES.items():
        keys = _open(reading, prefixes)
        if not reading.on(switch):
            reading.nothing(keys, f"{switch} is off")
            continue
        for key in keys:
            reading.lose(key, why) if why else None


def _open(reading: KeyReader, prefixes: tuple[str, ...]) -> list[str]:
    """Return the keys with these beginnings that have no verdict."""
    return [key for key in reading.given if key.startswith(prefixes) and not reading.decided(key)]


def _plugins(reading: KeyReader) -> None:
    plugins = reading.given.get("plugins")
    names = [str(name).rpartition(".")[2] for name in plugins] if isinstance(plugins, list) else []
    others = [name for name in names if name not in _PLUGINS_OF_KERNELS]
    if others:
        reading.lose("plugins", f"axolotl's plugins: {', '.join(others)}")
    else:
        reading.nothing("plugins", KERNEL)


def _images(reading: KeyReader) -> None:
    if not reading.is_given("processor_type"):
        return
    says = "images, video and sound are not read"
    reading.lose("processor_type", says)


def _batch(reading: KeyReader) -> None:
    """axolotl 0.19 reads an older ``batch_size`` nowhere: its gradient_accumulation_steps has a default."""
    steps = reading.value("gradient_accumulation_steps") or 1
    reading.nothing(
        "batch_size",
        f"gradient_accumulation_steps ({steps}) decides in axolotl 0.19: set it, if this is not meant",
    )
