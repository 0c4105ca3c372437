"""TRL 1.10's PPOTrainer on the shared workload (it left TRL after that); started by ``rollouts_vs_trl.py``
under torchrun, as ``trl_rollout_side.py`` is.

Imports nothing of Paceline. Writes one JSON object a rank; a step is a rollout with its four epochs, "tokens"
counts completions.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import workload
from trl_side import peak_bytes


def main() -> None:
    """One rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, required=True, help="rollouts")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], required=True)
    parser.add_argument("--answers", type=int, required=True, help="a process and rollout")
    parser.add_argument("--beta", type=float, required=True)
    options = parser.parse_args()

    import torch
    from datasets import Dataset
    from transformers import (
        AutoTokenizer,
        LlamaConfig,
        LlamaForCausalLM,
        LlamaForSequenceClassification,
        TrainerCallback,
    )
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = {k: v for k, v in workload.LLAMA_ROLLOUT.items() if k != "model_type"}
    whole = LlamaConfig(**config, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    scalar = LlamaConfig(**config, pad_token_id=0, num_labels=1)
    out = Path(options.out)
    tokenizer = AutoTokenizer.from_pretrained(str(out.parent / "tokenizer"), padding_side="left")
    rows = [row["prompt"] for row in workload.prompts(400, workload.PROMPT)]
    data = Dataset.from_list([{"input_ids": tokenizer(text)["input_ids"][:-1]} for text in rows])
    ends: list[float] = []

    class Hook(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            ends.append(time.perf_counter())

    world = int(os.environ.get("WORLD_SIZE", "1"))
    arguments = PPOConfig(
        output_dir=str(out.parent / "trl"),
        per_device_train_batch_size=options.answers,
        gradient_accumulation_steps=1,
        num_mini_batches=1,
        num_ppo_epochs=workload.PPO_EPOCHS,
        total_episodes=options.steps * options.answers * world,
        response_length=workload.ANSWER,
        stop_token_id=None,
        local_rollout_forward_batch_size=options.answers,
        kl_coef=options.beta,
        learning_rate=1e-5,
        temperature=1.0,
        num_sample_generations=0,
        bf16=options.dtype == "bfloat16",
        use_cpu=True,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = PPOTrainer(
        args=arguments,
        processing_class=tokenizer,
        model=LlamaForCausalLM(whole),
        ref_model=LlamaForCausalLM(whole),
        reward_model=LlamaForSequenceClassification(scalar),
        value_model=LlamaForSequenceClassification(scalar),
        train_dataset=data,
        eval_dataset=data.select(range(world)),
        callbacks=[Hook()],
    )
    trainer.train()
    seconds = [b - a for a, b in zip(ends, ends[1:], strict=False)]
    # the first is left out
    steps = [{"seconds": s, "tokens": options.answers} for s in [seconds[0], *seconds]]
    rank = int(os.environ.get("RANK", "0"))
    found = {"steps": steps, "first_step_at": time.time() - sum(seconds), "peak_bytes": peak_bytes()}
    out.with_suffix(f".{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
