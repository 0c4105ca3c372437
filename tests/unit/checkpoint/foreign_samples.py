"""A checkpoint-* folder as Transformers' Trainer lays it out, of a model that is built in a moment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

CONFIG: dict[str, Any] = {
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 16,
    "max_position_embeddings": 32,
    "tie_word_embeddings": True,
}


def tiny_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**CONFIG))


def stepped(model: LlamaForCausalLM, optimizer: torch.optim.AdamW | None = None) -> torch.optim.AdamW:
    """An optimizer, by default with Trainer's two groups, that has made two steps."""
    named = list(model.named_parameters())
    groups = [
        {"params": [p for n, p in named if "norm" not in n], "weight_decay": 0.1},
        {"params": [p for n, p in named if "norm" in n], "weight_decay": 0.0},
    ]
    optimizer = optimizer or torch.optim.AdamW(groups, lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        model(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
        optimizer.step()
    return optimizer


def write_trainer_folder(folder: Path, *, bin_weights: bool = False) -> tuple[Any, torch.optim.AdamW]:
    """Write it; return the model and the optimizer."""
    folder.mkdir(parents=True)
    model = tiny_llama()
    optimizer = stepped(model)
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    if bin_weights:
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    else:
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    torch.save({"last_epoch": 2}, folder / "scheduler.pt")
    torch.save({"python": (3, (1, 2), None)}, folder / "rng_state.pth")
    (folder / "config.json").write_text(model.config.to_json_string())
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 2, "epoch": 1.0}))
    return model, optimizer
