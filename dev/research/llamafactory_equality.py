#!/usr/bin/env python
"""Three steps' losses of LLaMA-Factory 0.9.5 and of the imported file, side by side.

    python -m venv LF && LF/bin/pip install llamafactory==0.9.5
    LF_PYTHON=LF/bin/python python dev/research/llamafactory_equality.py [FILE …]

``REPLACED`` and ``DROPPED`` are the written table: model, data, precision, device, one adapter from disk, and
all rows in every step, so that their order does not count; nothing else is changed. The tokenizer holds the
tokens of the files' templates, as the models' own do. Without FILE: the keys in ``SMALL``, of which some
cannot be equal: 0.9.5 with its TRL computes the sigmoid loss whatever ``pref_loss`` says of DPO, its
Transformers divides a sum over N - 1 tokens by N where all have loss, KTO's KL depends on the order of rows,
and GaLore layer by layer keeps the first rate.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from import_equality import ROOT, TOLERANCE, run_ours, run_peer

ROWS = 8
#: Model, data, precision, device; three steps of all rows
REPLACED = {
    "dataset_dir": ".",
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
)  # fmt: skip
#: Tokens that the templates write, which the tokenizers of their models have
TOKENS = (
    "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>",
    "<|im_start|>", "<|im_end|>",
)  # fmt: skip
RENAMED = {"dpo_ftx": "pref_ftx"}  # by a later version of LLaMA-Factory


_FULL = {"finetuning_type": "full", "template": "qwen", "learning_rate": 1e-3, "do_train": True}
#: name → its own keys
SMALL: dict[str, dict[str, object]] = {
    "sft": {"stage": "sft", **_FULL, "lr_scheduler_type": "cosine", "weight_decay": 0.1},
    "sft on the prompt, too": {"stage": "sft", **_FULL, "train_on_prompt": True, "max_grad_norm": 0.1},
    "sft, last answer": {"stage": "sft", **_FULL, "template": "llama3", "warmup_steps": 2},
    "pt, not packed": {"stage": "pt", **_FULL, "packing": False},
    "galore": {
        "stage": "sft",
        **_FULL,
        "use_galore": True,
        "galore_rank": 4,
        "galore_target": "mlp,self_attn",
    },
    "dpo, ipo": {"stage": "dpo", **_FULL, "pref_loss": "ipo", "pref_beta": 0.3},
    "dpo, hinge": {"stage": "dpo", **_FULL, "pref_loss": "hinge"},
    "dpo, smoothed": {"stage": "dpo", **_FULL, "dpo_label_smoothing": 0.2, "adam_beta2": 0.95},
    "simpo": {"stage": "dpo", **_FULL, "pref_loss": "simpo", "simpo_gamma": 0.5, "pref_beta": 2.0},
    "orpo": {"stage": "dpo", **_FULL, "pref_loss": "orpo"},
    "kto": {"stage": "kto", **_FULL, "kto_rejected_weight": 0.7},
}


def main() -> None:
    """Compare every file; exit with 1 if one differs by more than the tolerance."""
    from paceline.config.import_export.import_config import read_foreign

    cases = [(Path(file).name, dict(read_foreign(file)[0])) for file in sys.argv[1:]]
    worst: list[float] = []
    for title, keys in cases or list(SMALL.items()):
        with tempfile.TemporaryDirectory(prefix="paceline-equality-") as name:
            theirs, ours = compare(Path(name), dict(keys))
        worst.append(max(abs(a - b) for a, b in zip(theirs, ours, strict=True)))
        print(f"{title}: LLaMA-Factory {theirs} Paceline {ours}: {worst[-1]:.1e}", flush=True)
    print(f"{sum(w <= TOLERANCE for w in worst)} of {len(worst)} within {TOLERANCE:g}")
    sys.exit(int(any(w > TOLERANCE for w in worst)))


def compare(folder: Path, keys: dict[str, object]) -> tuple[list[float], list[float]]:
    """Return LLaMA-Factory's and our losses of three steps."""
    stage = str(keys.get("stage", "sft"))
    write_model(folder)
    write_rows(folder)
    given: dict[str, object] = {
        RENAMED.get(key, key): value for key, value in keys.items() if key not in DROPPED
    }
    given |= REPLACED
    if keys.get(
        "use_galore"
    ):  # 0.9.5 knows it with this optimizer alone, layer by layer with one micro-batch
        given |= {
            "optim": "adamw_torch",
            "per_device_train_batch_size": ROWS,
            "gradient_accumulation_steps": 1,
        }
    given |= {"model_name_or_path": str(folder / "model"), "output_dir": str(folder / "theirs")}
    given |= {"dataset": {"pt": "text", "rm": "pairs", "dpo": "pairs", "kto": "votes"}.get(stage, "rows")}
    given["dataset_dir"] = str(folder)
    if keys.get("finetuning_type", "lora") == "lora":
        given["adapter_name_or_path"] = str(write_adapter(folder, keys, stage))
    (folder / "given.json").write_text(json.dumps(given))
    theirs = run_peer("llamafactory_losses.py", folder, "LF_PYTHON", DISABLE_VERSION_CHECK="1")
    return theirs, run_ours(folder, "", given, "llamafactory")


def write_model(folder: Path) -> None:
    """Write a small model, and a tokenizer with the templates' tokens."""
    sys.path.insert(0, str(ROOT / "tests"))
    import torch
    from support import TINY_LLAMA, write_tokenizer
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {key: value for key, value in TINY_LLAMA.items() if key != "model_type"} | {"vocab_size": 352}
    write_tokenizer(folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    tokenizer.add_special_tokens({"additional_special_tokens": list(TOKENS), "bos_token": TOKENS[0]})
    tokenizer.save_pretrained(folder / "model")
    sizes |= {"max_position_embeddings": 512, "eos_token_id": tokenizer.eos_token_id}
    LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.2)).save_pretrained(folder / "model")


def write_rows(folder: Path) -> None:
    """Write rows of each kind, and ``dataset_info.json``."""
    from support import instruction_rows, preference_rows

    rows = [
        {"instruction": row["instruction"], "input": "", "output": row["output"]}
        for row in instruction_rows(ROWS)
    ]
    pairs = [
        {"instruction": str(r["prompt"]), "chosen": str(r["chosen"]), "rejected": str(r["rejected"])}
        for r in preference_rows(ROWS)
    ]
    votes = [
        {"instruction": row["instruction"], "output": row["output"], "vote": number % 2 == 0}
        for number, row in enumerate(rows)
    ]
    text = [{"text": f"{row['instruction']} {row['output']}"} for row in rows]
    for name, made in (("rows", rows), ("pairs", pairs), ("votes", votes), ("text", text)):
        (folder / f"{name}.json").write_text(json.dumps(made))
    columns = {"prompt": "instruction", "query": "input", "response": "output"}
    ranked = {"prompt": "instruction", "chosen": "chosen", "rejected": "rejected"}
    info = {
        "rows": {"file_name": "rows.json"},
        "pairs": {"file_name": "pairs.json", "ranking": True, "columns": ranked},
        "votes": {"file_name": "votes.json", "columns": {**columns, "query": "", "kto_tag": "vote"}},
        "text": {"file_name": "text.json", "columns": {"prompt": "text"}},
    }
    (folder / "dataset_info.json").write_text(json.dumps(info))


def write_adapter(folder: Path, keys: dict[str, object], stage: str) -> Path:
    """Write an adapter of the file's rank and modules whose second factor is not zero."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    target = str(keys.get("lora_target", "all"))
    modules = "all-linear" if target == "all" else [name.strip() for name in target.split(",")]
    rank = int(str(keys.get("lora_rank", 8)))
    config = LoraConfig(
        r=rank,
        lora_alpha=int(str(keys.get("lora_alpha") or 2 * rank)),
        target_modules=modules,
        use_rslora=bool(keys.get("use_rslora")),
        task_type="CAUSAL_LM",
    )
    torch.manual_seed(1)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(folder / "model"), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    model.save_pretrained(folder / "adapter")
    return folder / "adapter"


if __name__ == "__main__":
    main()
