"""A training by TRL: ``python foreign_trl.py KIND FOLDER BASE TOKENIZER`` (sft, lora, reward, dpo or grpo).

Saves ``FOLDER/checkpoint-3`` and writes the losses of the steps after it. TRL may lie in a folder of its own,
first on PYTHONPATH.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from datasets import Dataset
from foreign_training import DECAY, RATE, SAVED, STEPS, TEXTS, WARMUP, token_rows
from transformers import AutoModelForSequenceClassification, AutoTokenizer, LlamaForCausalLM

LORA = {"r": 4, "target_modules": ["q_proj", "v_proj", "down_proj"]}
LORA_RATE = 0.1


def trainer_of(kind: str, folder: Path, base: Path, tokenizer: Path) -> Any:
    import trl
    from peft import LoraConfig

    made = AutoTokenizer.from_pretrained(str(tokenizer))
    shared = {
        "output_dir": str(folder),
        "max_steps": STEPS,
        "per_device_train_batch_size": len(TEXTS),
        "learning_rate": LORA_RATE if kind == "lora" else RATE,
        "weight_decay": DECAY,
        "warmup_steps": WARMUP,
        "logging_steps": 1,
        "save_steps": SAVED,
        "save_total_limit": None,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "optim": "adamw_torch",
        "lr_scheduler_type": "linear",
    }
    pairs = Dataset.from_list([{"prompt": t, "chosen": f" {t}", "rejected": " no"} for t in TEXTS])
    if kind in ("sft", "lora"):
        adapter = LoraConfig(**LORA, lora_alpha=16, lora_dropout=0.0, task_type="CAUSAL_LM")  # type: ignore[arg-type]
        return trl.SFTTrainer(
            model=LlamaForCausalLM.from_pretrained(base),
            args=trl.SFTConfig(**shared, max_length=96, packing=False),
            train_dataset=Dataset.from_list(token_rows(tokenizer)),
            processing_class=made,
            peft_config=adapter if kind == "lora" else None,
        )
    if kind == "reward":
        model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
        return trl.RewardTrainer(
            model=model, args=trl.RewardConfig(**shared), train_dataset=pairs, processing_class=made
        )
    policy = LlamaForCausalLM.from_pretrained(base)
    if kind == "dpo":
        return trl.DPOTrainer(
            model=policy, args=trl.DPOConfig(**shared), train_dataset=pairs, processing_class=made
        )
    arguments = trl.GRPOConfig(**shared, num_generations=2, max_completion_length=8, beta=0.0)
    return trl.GRPOTrainer(
        model=policy,
        args=arguments,
        reward_funcs=lambda completions, **_: [float(len(text)) for text in completions],
        train_dataset=pairs.select_columns(["prompt"]),
        processing_class=made,
    )


def main(kind: str, folder: Path, base: Path, tokenizer: Path) -> None:
    trainer = trainer_of(kind, folder, base, tokenizer)
    trainer.train()
    losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    (folder / "losses.json").write_text(json.dumps(losses[SAVED:]))


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:]))
