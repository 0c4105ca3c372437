"""Trainings of other programs on the rows that ours reads: every step takes all rows, so their order is
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

TEXTS = ("hello world, this is a text", "another one", "and a third one, which is longer", "four")
SAVED, STEPS, RATE, DECAY, WARMUP = 3, 6, 1e-3, 0.1, 2


def write_texts(folder: Path) -> Path:
    path = folder / "texts.json"
    path.write_text(json.dumps([{"text": text} for text in TEXTS]))
    return path


def build(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=320,
            max_position_embeddings=256,
            tie_word_embeddings=False,
            pad_token_id=0,
            eos_token_id=1,
        )
    )


def token_rows(tokenizer: Path) -> list[dict[str, list[int]]]:
    made = AutoTokenizer.from_pretrained(str(tokenizer))
    return [{"input_ids": [*made(text)["input_ids"], made.eos_token_id]} for text in TEXTS]


def collate(rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.tensor([row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows])
    mask = torch.tensor([[int(at < len(row["input_ids"])) for at in range(longest)] for row in rows])
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def groups(model: LlamaForCausalLM) -> list[dict[str, Any]]:
    named = list(model.named_parameters())
    return [
        {"params": [p for n, p in named if "norm" not in n], "weight_decay": DECAY},
        {"params": [p for n, p in named if "norm" in n], "weight_decay": 0.0},
    ]


def rate(step: int) -> float:
    """Linear warm-up and decay, as ``lr_scheduler_type: linear`` has it."""
    return RATE * (step / WARMUP if step < WARMUP else (STEPS - step) / (STEPS - WARMUP))


def plain_loop(
    model: LlamaForCausalLM,
    optimizer: torch.optim.Optimizer,
    rows: list[dict[str, list[int]]],
    save: Callable[[], None],
) -> Iterator[float]:
    """A loop as a user writes it: the loss of each step; ``save`` after the third."""
    batch = collate(rows)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield float(loss.detach())
        if step + 1 == SAVED:
            save()


def ours(folder: Path, texts: Path, model: Path, **training: Any) -> dict[str, Any]:
    """A config that goes on as those trainings do."""
    return {
        "model": {"name_or_path": str(model)},
        "data": {
            "train": str(texts),
            "max_length": 96,
            "packing": False,
            "cache_dir": str(folder / "cache"),
        },
        "training": {
            "output_dir": str(folder / "run"),
            "max_steps": STEPS,
            "learning_rate": RATE,
            "warmup_steps": WARMUP,
            "weight_decay": DECAY,
            "max_grad_norm": 1.0,
            "lr_scheduler_type": "linear",
            "per_device_train_batch_size": len(TEXTS),
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            **training,
        },
    }
