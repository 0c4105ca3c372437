"""A corpus embedded on every device of one process: the model is copied once, not in every forward as
nn.DataParallel does.

    python examples/embed_corpus.py MODEL texts.txt embeddings.safetensors

MODEL is a Hugging Face folder (for instance of `paceline export`), texts.txt has a text a line. An embedding
is the mean of the last hidden states over a text's tokens, scaled to length 1: float32 [texts, hidden_size],
in the order of the lines.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

from paceline.extend import ParallelInference

ROWS = 16  # texts a forward


class MeanOfStates(nn.Module):
    """Input ids and mask [rows, length] to embeddings [rows, hidden_size]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        states = self.model(**inputs).last_hidden_state.float()
        mask = inputs["attention_mask"].unsqueeze(-1)
        return nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


def embed(folder: str, texts: list[str], devices: list[str]) -> Tensor:
    """Embeddings of ``texts``: float32 [texts, hidden_size]. Devices may repeat."""
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="right")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    parallel = ParallelInference(MeanOfStates(AutoModel.from_pretrained(folder)), devices)
    batches = [
        dict(
            tokenizer(
                texts[start : start + ROWS],
                padding=True,
                truncation=True,
                max_length=512,
                return_tensors="pt",
            )
        )
        for start in range(0, len(texts), ROWS)
    ]
    return torch.cat([found.cpu() for found in parallel(batches)])


if __name__ == "__main__":
    model, texts, target = sys.argv[1:]
    cards = [f"cuda:{index}" for index in range(torch.cuda.device_count())] or ["cpu"]
    lines = Path(texts).read_text(encoding="utf-8").splitlines()
    save_file({"embeddings": embed(model, lines, cards)}, target)
