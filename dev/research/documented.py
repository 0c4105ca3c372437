"""What the examples of the library are run with in place of hub names: a small model, rows, and one table of
keys; and how a script of ``examples/library`` is run so. For ``documented_examples.py`` and a test.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "library"
TABLE = ROOT / "docs/reference/library-examples.json"
ROWS, STEPS = 8, 3
#: float32 on the CPU, three steps of all rows at once, so that their order does not count (TRL's ORPO and CPO
#: take means of micro-batches); nothing beside the losses
OURS: Mapping[str, Any] = {
    "training.per_device_train_batch_size": ROWS,
    "training.gradient_accumulation_steps": 1,
    "training.max_steps": STEPS,
    "training.mixed_precision": "no",
    "training.use_cpu": True,
    "training.gradient_checkpointing": False,
    "training.report_to": "none",
    "training.logging_steps": 1,
    "training.save_strategy": "no",
    "training.eval_strategy": "no",
    "training.load_best_model_at_end": False,
    "data.eval": None,
    "data.validation_split": None,
    "model.attn_implementation": "eager",
}


def statements(source: str) -> int:
    """Return the statements of a program, nested ones too."""
    return sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(source)))


def names() -> list[str]:
    return sorted(path.stem for path in EXAMPLES.glob("*.py"))


def prepare(folder: Path) -> None:
    """Write small models (for words, for one score, for two classes), an adapter with weights, and rows."""
    sys.path.insert(0, str(ROOT / "tests"))
    import torch
    from support import TINY_LLAMA, instruction_rows, labelled_rows, preference_rows, write_tokenizer
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        LlamaForSequenceClassification,
        PreTrainedTokenizerFast,
    )

    torch.manual_seed(0)
    sizes: dict[str, Any] = {key: value for key, value in TINY_LLAMA.items() if key != "model_type"}
    sizes |= {"initializer_range": 0.2, "pad_token_id": 0, "max_position_embeddings": 2048}
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(folder / "model")
    scores = LlamaConfig(**sizes, num_labels=1)
    LlamaForSequenceClassification(scores).save_pretrained(folder / "scores")
    classes = LlamaConfig(**sizes, id2label={0: "NEGATIVE", 1: "POSITIVE"}, num_labels=2)
    LlamaForSequenceClassification(classes).save_pretrained(folder / "classes")
    for name in ("model", "scores", "classes"):
        write_tokenizer(folder / name)
    _adapter(folder)
    questions, pairs, labelled = instruction_rows(ROWS), preference_rows(ROWS), labelled_rows(ROWS)
    talks = [[_turn("user", r["instruction"]), _turn("assistant", r["output"])] for r in questions]
    _lines(folder / "messages.jsonl", [{"messages": talk} for talk in talks])
    _lines(folder / "pairs.jsonl", [{n: _talk(r, n) for n in ("chosen", "rejected")} for r in pairs])
    answers = [
        {
            "prompt": [_turn("user", str(r["prompt"]))],
            "completion": [_turn("assistant", str(r["completion"]))],
            "label": bool(r["label"]),
        }
        for r in labelled
    ]
    _lines(folder / "answers.jsonl", answers)
    texts = [f"{r['instruction']} {r['output']}" for r in questions]
    end = PreTrainedTokenizerFast.from_pretrained(
        folder / "model"
    ).eos_token  # ours ends every text, as TRL does
    _lines(folder / "texts.jsonl", [{"horoscope": f"{text}{end}"} for text in texts])
    _lines(folder / "classes.jsonl", [{"text": text, "label": i % 2} for i, text in enumerate(texts)])


def _adapter(folder: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(folder / "model")
    how = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(base, how).save_pretrained(folder / "adapter")


def _talk(row: Mapping[str, Any], name: str) -> list[dict[str, str]]:
    return [_turn("user", str(row["prompt"])), _turn("assistant", str(row[name]))]


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def local(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the overrides that put the small model, the rows and the table in place of an example's own."""
    algorithm = config["training"].get("algorithm", "sft")
    model = {"reward": "scores", "classification": "classes"}.get(algorithm, "model")
    path = config["data"]["train"] if isinstance(config["data"]["train"], str) else ""
    rows = {"trl-lib/Capybara": "messages", "trl-lib/kto-mix-14k": "answers", "stanfordnlp/imdb": "classes"}
    rows |= {"trl-lib/ultrafeedback_binarized": "pairs", "": "texts"}
    found = {
        **OURS,
        "model.name_or_path": str(folder / model),
        ("data.train" if path else "data.train.0.path"): str(folder / f"{rows[path]}.jsonl"),
    }
    return found | ({"lora.adapter_name_or_path": str(folder / "adapter")} if "lora" in config else {})


def run_ours(name: str, folder: Path) -> list[float]:
    """Run an example as it stands, with the small model and rows; return the losses of its steps."""
    import paceline

    real, runs = paceline.train, list[Any]()

    def small(config: dict[str, Any], **given: Any) -> None:
        out = {"training.output_dir": str(folder / "ours" / name)}
        runs.append(real(config, overrides={**local(config, folder), **out}, quiet=True, nproc=1, **given))

    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    with mock.patch.object(paceline, "train", small):
        exec(compile(source, f"{name}.py", "exec"), {"__name__": "__main__"})  # noqa: S102 - our own example
    (run,) = runs
    return [float(loss) for loss in run.arrays()["loss"]]
