#!/usr/bin/env python
"""Three steps' losses of axolotl 0.19.0 and of the imported file, side by side.

    python -m venv AX && AX/bin/pip install axolotl==0.19.0
    AX_PYTHON=AX/bin/python python dev/research/axolotl_equality.py FILE …

``REPLACED`` and ``DROPPED`` are the written table: model with its template, data, precision, device, one
adapter from disk, and all rows in every step (packed ones as one row), so that their order does not count.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from import_equality import TOLERANCE, run_ours, run_peer
from llamafactory_equality import ROWS, write_adapter, write_model

REPLACED: dict[str, object] = {
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


def main() -> None:
    """Compare every file; exit with 1 if one differs by more than the tolerance."""
    worst: list[float] = []
    for file in sys.argv[1:]:
        with tempfile.TemporaryDirectory(prefix="paceline-equality-") as name:
            theirs, ours = compare(Path(name), file)
        worst.append(max(abs(a - b) for a, b in zip(theirs, ours, strict=True)))
        print(f"{Path(file).name}: axolotl {theirs} Paceline {ours}: {worst[-1]:.1e}", flush=True)
    print(f"{sum(w <= TOLERANCE for w in worst)} of {len(worst)} within {TOLERANCE:g}")
    sys.exit(int(any(w > TOLERANCE for w in worst)))


def compare(folder: Path, file: str) -> tuple[list[float], list[float]]:
    """Return axolotl's and our losses of three steps."""
    from paceline.config.import_export.import_config import read_foreign

    keys = {key: value for key, value in read_foreign(file)[0].items() if value is not None}
    write_model(folder)
    pairs = str(keys.get("rl") or "") in ("dpo", "ipo", "orpo", "simpo")
    write_rows(folder, pairs)
    given: dict[str, object] = {
        key: value
        for key, value in keys.items()
        if key not in DROPPED and not key.startswith(("wandb_", "mlflow_", "swanlab_", "use_swanlab"))
    }
    packed = bool(given.get("sample_packing"))
    given |= REPLACED
    given |= {"micro_batch_size": 1 if packed else 4}
    given |= {"gradient_accumulation_steps": 1 if packed else ROWS // 4}
    given |= {"base_model": str(folder / "model"), "output_dir": str(folder / "theirs")}
    given["dataset_prepared_path"] = str(folder / "prepared")
    kind = "chat_template.default" if pairs else "chat_template"
    rows: dict[str, object] = {"path": str(folder / "rows.jsonl"), "ds_type": "json", "split": "train"}
    given["datasets"] = [rows | {"type": kind} | ({"field_messages": "conversation"} if pairs else {})]
    if keys.get("adapter"):
        made = {"lora_rank": keys.get("lora_r", 8), "lora_alpha": keys.get("lora_alpha")}
        given |= {"adapter": "lora", "lora_model_dir": str(write_adapter(folder, made, "sft"))}
        given["lora_target_linear"] = True
        given |= dict.fromkeys(("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel"), False)  # of CUDA
        given["lora_embedding_kernel"] = False
    (folder / "given.yaml").write_text(json.dumps(given))
    theirs = run_peer(
        "axolotl_losses.py", folder, "AX_PYTHON", ACCELERATE_USE_CPU="true", AXOLOTL_DO_NOT_TRACK="1"
    )
    del given["attn_implementation"]  # of the device: ours takes one that keeps packed documents apart
    return theirs, run_ours(folder, "", given, "axolotl")


def write_rows(folder: Path, pairs: bool) -> None:
    """Write conversations, or pairs of answers to one."""
    from support import instruction_rows, preference_rows

    rows: list[dict[str, object]] = [
        {"messages": [_turn("user", row["instruction"]), _turn("assistant", row["output"])]}
        for row in instruction_rows(ROWS)
    ]
    if pairs:
        rows = [
            {
                "conversation": [_turn("user", str(row["prompt"]))],
                "chosen": _turn("assistant", str(row["chosen"])),
                "rejected": _turn("assistant", str(row["rejected"])),
            }
            for row in preference_rows(ROWS)
        ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


if __name__ == "__main__":
    main()
