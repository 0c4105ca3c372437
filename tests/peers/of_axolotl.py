"""axolotl: a file's keys on the small model, as both programs get them (the table of replacements)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from small import ROWS, conversations, pairs, turn, write_adapter, write_lines

from paceline.core.json_types import as_list, as_object

Keys = dict[str, object]
#: Model with its template, data, precision, device; three steps of all rows (packed ones as one row)
REPLACED: Keys = {
    "chat_template": "tokenizer_default",
    "max_steps": 3,
    "bf16": False,
    "fp16": False,
    "tf32": False,
    "attn_implementation": "sdpa",
    "val_set_size": 0.0,
    "logging_steps": 1,
    "lora_dropout": 0.0,
    "gradient_checkpointing": False,
    "dataset_num_proc": 1,
    "sequence_len": 512,
    "load_in_4bit": False,
    "load_in_8bit": False,
    "save_strategy": "no",
    "dataloader_num_workers": 0,
}
#: Of another model, machine or data set; kernels, trackers, evaluation and saves, which no loss knows
DROPPED = (
    "activation_offloading", "layer_offloading", "roles_to_train", "torchao",
    "base_model_config", "model_type", "tokenizer_type", "tokenizer_config", "trust_remote_code",
    "plugins", "flash_attention", "sdp_attention", "flex_attention", "xformers_attention", "deepspeed",
    "fsdp", "fsdp_config", "fsdp_version", "dataset_prepared_path", "datasets", "test_datasets",
    "output_dir", "eval_sample_packing", "evals_per_epoch", "eval_steps", "saves_per_epoch",
    "save_steps", "save_first_step", "save_total_limit", "eval_max_new_tokens", "eval_table_size",
    "special_tokens", "num_epochs", "adapter", "lora_model_dir", "bnb_config_kwargs",
    "gradient_checkpointing_kwargs", "torch_compile", "experimental_skip_move_to_device",
    "lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "liger_glu_activation", "liger_rms_norm",
    "liger_layer_norm", "liger_cross_entropy", "liger_rope", "liger_fused_linear_cross_entropy",
    "processor_type", "cut_cross_entropy", "quantize_moe_experts", "use_kernels",
    "expert_parallel_size", "context_parallel_size", "tensor_parallel_size", "dp_shard_size",
    "dp_replicate_size", "resume_from_checkpoint", "local_rank", "early_stopping_patience",
    "eval_batch_size", "pad_to_sequence_len", "is_llama_derived_model", "strict", "lora_target_modules",
    "lora_target_linear", "lora_target_parameters", "lora_modules_to_save", "model_quantization_config",
    "model_quantization_config_kwargs", "skip_prepare_dataset", "logger", "qat",
    "flash_attn_cross_entropy", "flash_attn_rms_norm", "flash_attn_fuse_qkv", "flash_attn_fuse_mlp",
    "gptq", "overrides_of_model_config", "unfrozen_parameters", "freeze_mm_modules", "hub_model_id",
    "remove_unused_columns", "dataset_exact_deduplication", "use_scattermoe", "use_sonicmoe",
    "experts_implementation",
)  # fmt: skip
_TRACKERS = ("wandb_", "mlflow_", "swanlab_", "use_swanlab", "comet_")
_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")  # of CUDA


_SFT: Keys = {"learning_rate": 1e-3, "optimizer": "adamw_torch", "lr_scheduler": "cosine", "warmup_steps": 1}
_SFT |= {"micro_batch_size": ROWS, "gradient_accumulation_steps": 1}
_WARM: Keys = {key: value for key, value in _SFT.items() if key != "warmup_steps"}
#: name → keys, for what no example has
SMALL: Mapping[str, Keys] = {
    "sft": _SFT,
    "sft micro-batches": _SFT | {"micro_batch_size": ROWS // 2, "gradient_accumulation_steps": 2},
    "sft packed": _SFT | {"sample_packing": True},
    "sft on inputs": _SFT | {"train_on_inputs": True},
    "warm-up": _WARM | {"warmup_ratio": 0.9},
    "alpaca": _SFT | {"datasets": [{"path": "rows", "type": "alpaca"}]},
    "dpo": _SFT | {"rl": "dpo"},
    "dpo smoothed": _SFT | {"rl": "dpo", "dpo_loss_type": ["robust"], "dpo_label_smoothing": 0.2},
}


def small(folder: Path, keys: Mapping[str, object]) -> Keys:
    """Return the keys with the table applied; ``folder`` has the model. Writes rows and adapter."""
    keys = {key: value for key, value in keys.items() if value is not None}
    ranked = str(keys.get("rl") or "") in ("dpo", "ipo", "orpo", "simpo")
    given: Keys = {k: v for k, v in keys.items() if k not in DROPPED and not k.startswith(_TRACKERS)}
    packed = bool(given.get("sample_packing"))
    given |= REPLACED
    alone = (keys.get("micro_batch_size"), keys.get("gradient_accumulation_steps")) == (ROWS, 1)
    given |= {"micro_batch_size": 1 if packed else ROWS if alone else 4}
    given |= {"gradient_accumulation_steps": 1 if packed or alone else ROWS // 4}
    if alone and "warmup_ratio" in keys:  # a step is an epoch
        given = {key: value for key, value in given.items() if key != "max_steps"} | {"num_epochs": 3}
    given |= {"base_model": str(folder / "model"), "output_dir": str(folder / "theirs")}
    styles = {as_object(item).get("type") for item in as_list(keys.get("datasets"))}  # type: ignore[arg-type]
    alpaca = styles == {"alpaca"} and not ranked
    entry = write_alpaca(folder) if alpaca else write_rows(folder, ranked)
    given |= {"dataset_prepared_path": str(folder / "prepared"), "datasets": [entry]}
    given = {key: value for key, value in given.items() if not alpaca or key != "chat_template"}
    if keys.get("adapter"):
        made = {"lora_rank": keys.get("lora_r", 8), "lora_alpha": keys.get("lora_alpha")}
        given |= {"adapter": "lora", "lora_model_dir": str(write_adapter(folder, made))}
        given |= {"lora_target_linear": True, **dict.fromkeys(_KERNELS, False)}
    return given


def for_ours(given: Keys) -> Keys:
    """Return the keys without those of the device: our kernel keeps packed documents apart."""
    return {key: value for key, value in given.items() if key != "attn_implementation"}


def write_alpaca(folder: Path) -> Keys:
    """Write instructions with their answers; return the entry of ``datasets``."""
    rows = [
        {"instruction": row["messages"][0]["content"], "input": "", "output": row["messages"][1]["content"]}
        for row in conversations()
    ]
    path = write_lines(folder / "alpaca.jsonl", rows)
    return {"path": str(path), "ds_type": "json", "split": "train", "type": "alpaca"}


def write_rows(folder: Path, ranked: bool) -> Keys:
    """Write conversations, or pairs of answers to one; return the entry of ``datasets``."""
    rows = conversations()
    if ranked:
        rows = [
            {"conversation": [turn("user", row["prompt"])]}
            | {name: turn("assistant", row[name]) for name in ("chosen", "rejected")}
            for row in pairs()
        ]
    path = write_lines(folder / "rows.jsonl", rows)
    entry: Keys = {"path": str(path), "ds_type": "json", "split": "train", "type": "chat_template"}
    if ranked:
        entry |= {"type": "chat_template.default", "field_messages": "conversation"}
    return entry
