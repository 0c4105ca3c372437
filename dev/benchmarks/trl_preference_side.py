"""TRL's RewardTrainer and DPOTrainer on the shared workload; started by ``preference_vs_trl.py`` under
torchrun with the Python of TRL's own environment.

Imports nothing of Paceline. Writes one JSON object a rank, as ``trl_side.py`` does.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import workload
from trl_side import Clock, peak_bytes


def main() -> None:
    """One rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--algorithm", choices=["reward", "dpo"], required=True)
    parser.add_argument(
        "--cached", action="store_true", help="DPO: log-probabilities of the reference asked before"
    )
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], required=True)
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--accumulation", type=int, default=2)
    options = parser.parse_args()

    import torch
    from transformers import TrainerCallback

    torch.manual_seed(0)
    torch.set_num_threads(1)
    out, clock = Path(options.out), Clock(options.accumulation)

    class Hook(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            clock.begin()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            clock.end()

    trainer = make_trainer(options, out, Hook())
    inner = trainer.training_step

    def counted(model: Any, inputs: Any, *rest: Any, **kwargs: Any) -> Any:
        clock.tokens += int(inputs["attention_mask"].sum())
        return inner(model, inputs, *rest, **kwargs)

    trainer.training_step = counted
    trainer.train()
    rank = int(os.environ.get("RANK", "0"))
    out.with_suffix(f".{rank}.json").write_text(
        json.dumps({"steps": clock.steps, "first_step_at": clock.first, "peak_bytes": peak_bytes()})
    )


def make_trainer(options: argparse.Namespace, out: Path, hook: Any) -> Any:
    """The trainer of either algorithm, gradient checkpointing off."""
    from datasets import Dataset
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification
    from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer

    config = {k: v for k, v in workload.LLAMA_56M.items() if k != "model_type"}
    tokenizer = AutoTokenizer.from_pretrained(str(out.parent / "tokenizer"))
    needed = (
        options.steps * options.micro_batch * options.accumulation * int(os.environ.get("WORLD_SIZE", "1"))
    )
    rows = needed if options.cached else options.rows  # what is asked before is not timed
    file = out.parent / f"turns-{rows}.jsonl"  # from a file: what TRL keeps of it has to be one for all ranks
    data = Dataset.from_json(str(file), cache_dir=str(out.parent / "datasets"))
    shared = {
        "output_dir": str(out.parent / "trl"),
        "per_device_train_batch_size": options.micro_batch,
        "gradient_accumulation_steps": options.accumulation,
        "max_steps": options.steps,
        "max_length": workload.SEQ_LEN,
        "bf16": options.dtype == "bfloat16",
        "fp16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "learning_rate": 1e-4,
        "save_strategy": "no",
        "report_to": "none",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    if options.algorithm == "reward":
        model = LlamaForSequenceClassification(LlamaConfig(**config, num_labels=1, pad_token_id=0))
        arguments = RewardConfig(**shared)
        return RewardTrainer(
            model=model, args=arguments, train_dataset=data, processing_class=tokenizer, callbacks=[hook]
        )
    model = LlamaForCausalLM(LlamaConfig(**config, pad_token_id=0))
    reference = None if options.cached else LlamaForCausalLM(LlamaConfig(**config, pad_token_id=0))
    return DPOTrainer(
        model=model,
        ref_model=reference,
        args=DPOConfig(**shared, precompute_ref_log_probs=options.cached),
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[hook],
    )


if __name__ == "__main__":
    main()
