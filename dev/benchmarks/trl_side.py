"""TRL's SFTTrainer on the shared workload; started by ``sft_vs_trl.py`` under torchrun with the Python of
TRL's own environment.

Imports nothing of Paceline. Writes one JSON object a rank: seconds and real tokens of every optimizer step,
peak memory, time of the first step.
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


def main() -> None:
    """One rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], required=True)
    parser.add_argument("--packing", choices=["bfd", "off"], required=True)
    parser.add_argument("--model", choices=workload.MODELS, default="llama")
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--accumulation", type=int, default=2)
    options = parser.parse_args()

    import torch
    from datasets import Dataset
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = dict(workload.MODELS[options.model])
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config.pop("model_type"), **config))
    folder = Path(options.out).parent / "tokenizer"
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    data = Dataset.from_list([{"input_ids": ids} for ids in workload.rows(options.rows)])
    out = Path(options.out)
    clock = Clock(options.accumulation)

    class Hook(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            clock.begin()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            clock.end()

    arguments = SFTConfig(
        output_dir=str(out.parent / "trl"),
        per_device_train_batch_size=options.micro_batch,
        gradient_accumulation_steps=options.accumulation,
        max_steps=options.steps,
        max_length=workload.SEQ_LEN,
        packing=options.packing == "bfd",
        packing_strategy="bfd",
        bf16=options.dtype == "bfloat16",
        fp16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        learning_rate=1e-4,
        save_strategy="no",
        report_to="none",
        logging_strategy="no",
        disable_tqdm=True,
        dataset_kwargs={"skip_prepare_dataset": False},
        dataloader_pin_memory=False,
    )
    trainer = SFTTrainer(
        model=model, args=arguments, train_dataset=data, processing_class=tokenizer, callbacks=[Hook()]
    )
    inner = trainer.training_step

    def counted(model: Any, inputs: Any, *rest: Any, **kwargs: Any) -> Any:
        mask = inputs.get("attention_mask")  # none in packed rows without padding
        clock.tokens += inputs["input_ids"].numel() if mask is None else int(mask.sum())
        return inner(model, inputs, *rest, **kwargs)

    trainer.training_step = counted
    trainer.train()
    rank = int(os.environ.get("RANK", "0"))
    out.with_suffix(f".{rank}.json").write_text(
        json.dumps({"steps": clock.steps, "first_step_at": clock.first, "peak_bytes": peak_bytes()})
    )


class Clock:
    """Seconds and real (non-padding) tokens of each optimizer step."""

    def __init__(self, accumulation: int) -> None:
        self.steps: list[dict[str, float]] = []
        self.tokens = 0
        self.first = 0.0
        self._started = 0.0

    def begin(self) -> None:
        """A step begins: its first micro-batch is about to be computed."""
        self._started, self.tokens = time.perf_counter(), 0

    def end(self) -> None:
        """The optimizer has stepped."""
        self.first = self.first or time.time()
        self.steps.append({"seconds": time.perf_counter() - self._started, "tokens": self.tokens})


def peak_bytes() -> int:
    """VmHWM of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    main()
