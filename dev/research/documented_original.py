#!/usr/bin/env python
"""Run FOLDER/original.py with small models and rows in place of hub names: `documented_original.py FOLDER`
prints the logged losses.
"""

from __future__ import annotations

import json
import re
import sys
import types
from pathlib import Path
from typing import Any

ARGUMENTS = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "max_steps": 3,
    "bf16": False,
    "fp16": False,
    "use_cpu": True,
    "gradient_checkpointing": False,
    "report_to": "none",
    "logging_steps": 1,
    "save_strategy": "no",
    "eval_strategy": "no",
    "load_best_model_at_end": False,
    "push_to_hub": False,
    "disable_tqdm": True,
}
ROWS = {
    "Capybara": "messages",
    "ultrafeedback_binarized": "pairs",
    "kto-mix-14k": "answers",
    "astro_horoscope": "texts",
    "imdb": "classes",
}


def main() -> None:
    """Patch what names the hub, run the original, and print its losses."""
    folder = Path(sys.argv[1])
    import datasets
    import transformers

    settle = transformers.TrainingArguments.__post_init__

    def settled(self: Any) -> None:
        for name, value in ARGUMENTS.items():
            setattr(self, name, value)
        settle(self)

    transformers.TrainingArguments.__post_init__ = settled
    real = datasets.load_dataset

    def load(name: str, *_: Any, split: str | None = None) -> Any:
        file = folder / f"{ROWS[name.rpartition('/')[2]]}.jsonl"
        rows = real("json", data_files=str(file), split="train", cache_dir=str(folder / "hf"))
        return rows if split else datasets.DatasetDict({"train": rows, "test": rows})

    datasets.load_dataset = load
    datasets.Dataset.train_test_split = lambda self, **_: datasets.DatasetDict({"train": self, "test": self})
    sys.modules["evaluate"] = types.SimpleNamespace(load=lambda name: None)  # type: ignore[assignment]
    code = (folder / "original.py").read_text(encoding="utf-8")
    model = (
        "scores" if "RewardTrainer" in code else "classes" if "SequenceClassification" in code else "model"
    )
    code = re.sub(r'"trl-lib/[\w.-]*LoRA"', repr(str(folder / "adapter")), code)
    code = re.sub(r'"(Qwen/[\w.-]*|distilbert[\w./-]*)"', repr(str(folder / model)), code)
    code = code.replace("evaluation_strategy", "eval_strategy").replace(
        "tokenizer=tokenizer,\n", "processing_class=tokenizer,\n"
    )
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, "original.py", "exec"), names)  # noqa: S102 - the page's own code
    print(json.dumps([one["loss"] for one in names["trainer"].state.log_history if "loss" in one]))


if __name__ == "__main__":
    main()
