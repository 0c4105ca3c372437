"""TRL: a file's keys on the small model, as both programs get them (the table of replacements)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from small import ROWS, conversations, pairs, turn, write_lines

from paceline.config.import_export.programs.trl import trl_defaults

Keys = dict[str, object]
#: Model, data, precision, device; three steps of all rows, so that their order does not count
REPLACED: Keys = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": ROWS // 4,
    "max_steps": 3,
    "bf16": False,
    "fp16": False,
    "use_cpu": True,
    "report_to": "none",
    "logging_steps": 1,
    "save_strategy": "no",
    "eval_strategy": "no",
    "lora_dropout": 0.0,
    "attn_implementation": "eager",
    "dataset_num_proc": 1,
    "dtype": "float32",
    "gradient_checkpointing": False,
    "push_to_hub": False,
    "max_length": 128,
    "use_peft": False,
    "load_in_4bit": False,
}
DROPPED = (
    "torch_dtype",
    "max_seq_length",
    "model_revision",
    "dataset_config",
    "dataset_mixture",
    "dataset_mixer",
    "hub_model_id",
    "hub_strategy",
    "chat_template",
    "eos_token",
    "tokenizer_name",
    "num_train_epochs",
    "evaluation_strategy",
    "use_liger_kernel",
)
#: name → (trainer, its own keys), for what no example has
SMALL: dict[str, tuple[str, Keys]] = {
    "sft": ("sft", {"learning_rate": 1e-3, "lr_scheduler_type": "cosine", "warmup_steps": 1}),
    "sft defaults": ("sft", {}),
    "sft assistant": ("sft", {"learning_rate": 1e-3, "assistant_only_loss": True, "weight_decay": 0.1}),
    "sft dft": ("sft", {"learning_rate": 1e-3, "loss_type": "dft"}),
    "sft packed": ("sft", {"learning_rate": 1e-3, "packing": True, "packing_strategy": "bfd"}),
    "dpo": ("dpo", {"learning_rate": 1e-3}),
    "dpo hinge": ("dpo", {"learning_rate": 1e-3, "loss_type": ["hinge"], "beta": 0.3}),
    "dpo ipo": ("dpo", {"learning_rate": 1e-3, "loss_type": ["ipo"], "max_grad_norm": 0.1}),
    "dpo apo_zero": ("dpo", {"learning_rate": 1e-3, "loss_type": ["apo_zero"]}),
    "dpo apo_down": ("dpo", {"learning_rate": 1e-3, "loss_type": "apo_down", "beta": 0.3}),
    "dpo smoothed": ("dpo", {"learning_rate": 1e-3, "label_smoothing": 0.2, "adam_beta2": 0.95}),
    "dpo and sft": (
        "dpo",
        {"learning_rate": 1e-3, "loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]},
    ),
    "reward": ("reward", {"learning_rate": 1e-3, "center_rewards_coefficient": 0.01}),
}


def small(folder: Path, trainer: str, keys: Mapping[str, object]) -> tuple[str, Keys]:
    """Return trainer and keys with the table applied; ``folder`` has the model. Writes the rows.

    Adapters are drawn anew by each program, so LoRA is left out, and so are keys that this TRL no longer has
    (``warmup_ratio``) or never had.
    """
    known = trl_defaults(trainer)
    given = {key: value for key, value in keys.items() if key in known and key not in DROPPED} | REPLACED
    given |= {"model_name_or_path": str(folder / "model"), "output_dir": str(folder / "trl")}
    rows = conversations()
    if trainer != "sft":
        rows = [
            {name: [turn("user", r["prompt"]), turn("assistant", r[name])] for name in ("chosen", "rejected")}
            for r in pairs()
        ]
    given["dataset_name"] = str(write_lines(folder / f"{trainer}.jsonl", rows))
    return trainer, given
