"""TRL 1.16.0 in its own environment trains a model with a vision tower: ``KIND STEPS RATE`` in a folder that
``image_losses.write_inputs`` made; the last line it prints is the list of losses.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path


def declare_operators() -> None:
    """Let torchvision be imported without its compiled part, which is made for another build of torch."""
    import torch

    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    declare_operators.library = library  # type: ignore[attr-defined]  # it ends with its last reference


def losses(kind: str, steps: int, rate: float) -> list[float]:
    """Return the losses of an epoch a step."""
    import torch
    import trl
    from datasets import Dataset
    from PIL import Image
    from transformers import AutoModelForImageTextToText, AutoProcessor

    rows = [json.loads(line) for line in Path("rows.jsonl").read_text("utf-8").splitlines()]
    pictures = [{**row, "images": [Image.open(path) for path in row["images"]]} for row in rows]
    arguments = trl.SFTConfig(
        output_dir="out",
        per_device_train_batch_size=len(rows),
        num_train_epochs=steps,
        learning_rate=rate,
        lr_scheduler_type="constant",
        optim="adamw_torch",
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        max_length=None,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
    )
    trainer = trl.SFTTrainer(
        model=AutoModelForImageTextToText.from_pretrained(kind, dtype=torch.float32),
        args=arguments,
        train_dataset=Dataset.from_list(pictures),
        processing_class=AutoProcessor.from_pretrained(kind),
    )
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


if __name__ == "__main__":
    if importlib.util.find_spec("torchvision") is not None:
        declare_operators()
    print(json.dumps(losses(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))))
