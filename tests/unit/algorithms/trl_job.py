"""What a comparison with one of TRL's trainers needs: models, and the same rows for both sides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from paceline.config.load import load_config
from paceline.data.packed_source import PackedSource
from paceline.data.prepare.prepare import prepare
from paceline.data.rows.kinds.base import row_kind

SHAPE = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}


def trl_job(
    folder: Path, tokenizer_dir: Path, algorithm: str, kind: str, file: Path, rows: Sequence[dict[str, Any]]
) -> SimpleNamespace:
    """Two models of the same shape (``folders``), our ``source`` of the rows in ``file``, and the ``rows`` as
    TRL takes them, with the ``tokenizer`` and a folder ``out`` for its trainer.
    """
    from datasets import Dataset
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    folders = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        folders.append(str(folder / f"model-{seed}"))
        LlamaForCausalLM(LlamaConfig(**SHAPE, initializer_range=0.3)).save_pretrained(folders[-1])
    flags = {
        "model.name_or_path": folders[0],
        "model.tokenizer": str(tokenizer_dir),
        "training.algorithm": algorithm,
        "data.train": str(file),
        "data.max_length": 128,
    }
    config = load_config(None, flags=flags).config
    prepared = prepare(config.data, config.model, seed=0, cache_dir=folder / "cache", kind=row_kind(kind))
    source = PackedSource(
        prepared.train, seq_len=128, packing=False, seed=0, pad_token_id=prepared.pad_token_id, shuffle=False
    )
    return SimpleNamespace(
        config=config,
        folders=folders,
        source=source,
        rows=Dataset.from_list(list(rows)),
        tokenizer=AutoTokenizer.from_pretrained(tokenizer_dir),
        out=str(folder / "trl"),
    )
