"""LLaMA-Factory: a file's keys on the small model, as both programs get them (the table of replacements)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from small import ROWS, conversations, pairs, write_adapter

Keys = dict[str, object]
#: Model, data, precision, device; three steps of all rows, so that their order does not count
REPLACED: Keys = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": ROWS // 4,
    "max_steps": 3,
    "max_samples": ROWS,
    "bf16": False,
    "fp16": False,
    "use_cpu": True,
    "flash_attn": "disabled",
    "report_to": "none",
    "logging_steps": 1,
    "lora_dropout": 0.0,
    "preprocessing_num_workers": 1,
    "dataloader_num_workers": 0,
    "val_size": 0.0,
    "cutoff_len": 256,
    "overwrite_cache": True,
    "disable_gradient_checkpointing": True,
    "plot_loss": False,
}
#: Of another model, machine, data set or version of LLaMA-Factory; evaluation and saves, which no loss knows
DROPPED = (
    "deepspeed", "fsdp", "fsdp_config", "ddp_timeout", "pure_bf16", "quantization_bit", "quantization_method",
    "double_quantization", "eval_dataset", "eval_strategy", "evaluation_strategy", "eval_steps",
    "per_device_eval_batch_size", "save_steps", "save_strategy", "save_only_model", "overwrite_output_dir",
    "resume_from_checkpoint", "logging_dir", "num_train_epochs", "trust_remote_code", "train_size",
    "ray_run_name", "ray_storage_path", "ray_num_workers", "placement_strategy", "resources_per_worker",
    "image_max_pixels", "video_max_pixels", "enable_liger_kernel", "use_unsloth", "upcast_layernorm",
    "include_num_input_tokens_seen", "adapter_name_or_path", "infer_backend", "low_cpu_mem_usage",
    "fp8", "fp8_backend", "fp8_enable_fsdp_float8_all_gather", "hub_model_id", "predict_with_generate",
    "run_name", "seed", "quantization_device_map", "use_kt", "kt_optimize_rule", "cpu_infer", "chunk_size",
)  # fmt: skip
#: blocks of version 1 for machines and inference
OF_MACHINE = (
    "dist_config", "kernel_config", "quant_config", "init_config", "flash_attn", "batching_strategy",
    "cp_size", "cp_mode", "sample_backend", "max_new_tokens",
)  # fmt: skip
RENAMED = {"dpo_ftx": "pref_ftx"}  # by a later version of LLaMA-Factory
_FULL: Keys = {"finetuning_type": "full", "template": "qwen", "learning_rate": 1e-3, "do_train": True}
#: name → its own keys, for what no example has
SMALL: dict[str, Keys] = {
    "sft": {"stage": "sft", **_FULL, "lr_scheduler_type": "cosine", "weight_decay": 0.1},
    "sft on the prompt, too": {"stage": "sft", **_FULL, "train_on_prompt": True, "max_grad_norm": 0.1},
    "sft, last answer": {"stage": "sft", **_FULL, "template": "llama3", "warmup_steps": 2},
    "sft, muon": {"stage": "sft", **_FULL, "use_muon": True, "weight_decay": 0.1},
    "sft, oft": {
        "stage": "sft",
        **_FULL,
        "finetuning_type": "oft",
        "oft_block_size": 24,
        "oft_target": "q_proj",
    },
    "sft, llama pro": {
        "stage": "sft",
        **_FULL,
        "finetuning_type": "freeze",
        "freeze_trainable_layers": 1,
        "use_llama_pro": True,
    },
    "sft, apollo": {
        "stage": "sft",
        **_FULL,
        "use_apollo": True,
        "apollo_layerwise": True,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.1,
    },
    "sft, adam-mini": {"stage": "sft", **_FULL, "use_adam_mini": True, "weight_decay": 0.1},
    "pt, not packed": {"stage": "pt", **_FULL, "packing": False},
    "dpo, ipo": {"stage": "dpo", **_FULL, "pref_loss": "ipo", "pref_beta": 0.3},
    "dpo, hinge": {"stage": "dpo", **_FULL, "pref_loss": "hinge"},
    "dpo, smoothed": {"stage": "dpo", **_FULL, "dpo_label_smoothing": 0.2, "adam_beta2": 0.95},
    "simpo": {"stage": "dpo", **_FULL, "pref_loss": "simpo", "simpo_gamma": 0.5, "pref_beta": 2.0},
    "orpo": {"stage": "dpo", **_FULL, "pref_loss": "orpo"},
    "dpo and sft": {"stage": "dpo", **_FULL, "pref_ftx": 0.5},
    "kto": {"stage": "kto", **_FULL, "kto_rejected_weight": 0.7},
}


def small(folder: Path, keys: Mapping[str, object]) -> Keys:
    """Return the keys with the table applied; ``folder`` has the model. Writes rows and adapter."""
    stage = str(keys.get("stage", "sft"))
    write_rows(folder)
    if "train_dataset" in keys:
        return _version_1(folder, keys)
    given: Keys = {RENAMED.get(key, key): value for key, value in keys.items() if key not in DROPPED}
    given |= REPLACED
    if keys.get("use_galore") or keys.get(
        "use_apollo"
    ):  # 0.9.5 knows them with this optimizer, layer by layer with one micro-batch
        given |= {
            "optim": "adamw_torch",
            "per_device_train_batch_size": ROWS,
            "gradient_accumulation_steps": 1,
        }
    given |= {"model_name_or_path": str(folder / "model"), "output_dir": str(folder / "theirs")}
    if stage in ("pt", "rm", "dpo", "kto", "sft"):
        given["dataset"] = {"pt": "text", "rm": "pairs", "dpo": "pairs", "kto": "votes"}.get(stage, "rows")
    given["dataset_dir"] = str(folder)
    if keys.get("finetuning_type", "lora") == "lora" and not keys.get("pissa_init"):
        given["adapter_name_or_path"] = str(write_adapter(folder, keys))
    return given


def _version_1(folder: Path, keys: Mapping[str, object]) -> Keys:
    given: Keys = {key: value for key, value in keys.items() if key not in OF_MACHINE}
    rows = {"path": str(folder / "rows.json"), "source": "local", "converter": "alpaca"}
    (folder / "rows.yaml").write_text(json.dumps({"rows": rows}))
    if "peft_config" in keys:
        start = write_adapter(folder, {"lora_rank": 8, "lora_alpha": 16})
        given["peft_config"] = {"name": "lora", "adapter_name_or_path": str(start)}
    small: Keys = {"micro_batch_size": ROWS, "cutoff_len": 256, "bf16": False, "max_steps": 3}
    small |= {"learning_rate": 1e-2, "batching_workers": 0, "output_dir": str(folder / "theirs")}
    return given | small | {"model": str(folder / "model"), "train_dataset": str(folder / "rows.yaml")}


def write_rows(folder: Path) -> None:
    """Write rows of each kind, and ``dataset_info.json``."""
    talks = [[str(turn["content"]) for turn in row["messages"]] for row in conversations()]
    rows = [{"instruction": asked, "input": "", "output": said} for asked, said in talks]
    ranked = [{"instruction": r["prompt"], "chosen": r["chosen"], "rejected": r["rejected"]} for r in pairs()]
    votes = [{"instruction": q, "output": a, "vote": n % 2 == 0} for n, (q, a) in enumerate(talks)]
    text = [{"text": f"{asked} {said}"} for asked, said in talks]
    for name, made in (("rows", rows), ("pairs", ranked), ("votes", votes), ("text", text)):
        (folder / f"{name}.json").write_text(json.dumps(made))
    columns = {"prompt": "instruction", "query": "input", "response": "output"}
    pair = {"prompt": "instruction", "chosen": "chosen", "rejected": "rejected"}
    info = {
        "rows": {"file_name": "rows.json"},
        "pairs": {"file_name": "pairs.json", "ranking": True, "columns": pair},
        "votes": {"file_name": "votes.json", "columns": {**columns, "query": "", "kto_tag": "vote"}},
        "text": {"file_name": "text.json", "columns": {"prompt": "text"}},
    }
    (folder / "dataset_info.json").write_text(json.dumps(info))
