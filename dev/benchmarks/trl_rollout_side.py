"""TRL's GRPOTrainer on the shared workload; started by ``rollouts_vs_trl.py`` under torchrun with the Python
of TRL's own environment.

Imports nothing of Paceline. Writes one JSON object a rank, as ``trl_side.py`` does; "tokens" counts
completions.
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
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], required=True)
    parser.add_argument("--answers", type=int, required=True, help="a process and step")
    parser.add_argument("--beta", type=float, required=True)
    options = parser.parse_args()

    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = {k: v for k, v in workload.LLAMA_ROLLOUT.items() if k != "model_type"}
    model = LlamaForCausalLM(LlamaConfig(**config, pad_token_id=0, bos_token_id=1, eos_token_id=2))
    out = Path(options.out)
    tokenizer = AutoTokenizer.from_pretrained(str(out.parent / "tokenizer"), padding_side="left")
    data = Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": row["prompt"]}]}
            for row in workload.prompts(400, workload.PROMPT)
        ]
    )
    ends: list[float] = []

    class Hook(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            ends.append(time.perf_counter())

    def judged(completions: list[Any], **_: Any) -> list[float]:
        return [float(len(c[0]["content"]) % 7) for c in completions]

    arguments = GRPOConfig(
        output_dir=str(out.parent / "trl"),
        per_device_train_batch_size=options.answers,
        gradient_accumulation_steps=1,
        num_generations=workload.GROUP,
        max_completion_length=workload.ANSWER,
        max_steps=options.steps,
        beta=options.beta,
        learning_rate=1e-5,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        bf16=options.dtype == "bfloat16",
        fp16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        generation_kwargs={"min_new_tokens": workload.ANSWER},
        save_strategy="no",
        report_to="none",
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=judged,
        args=arguments,
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[Hook()],
    )
    started = time.perf_counter()
    trainer.train()
    seconds = [b - a for a, b in zip([started, *ends], ends, strict=False)]
    rank = int(os.environ.get("RANK", "0"))
    out.with_suffix(f".{rank}.json").write_text(
        json.dumps(
            {
                "steps": [{"seconds": s, "tokens": options.answers} for s in seconds],
                "first_step_at": time.time() - (ends[-1] - ends[0]),
                "peak_bytes": peak_bytes(),
            }
        )
    )


if __name__ == "__main__":
    main()
