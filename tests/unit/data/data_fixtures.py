"""Tiny data and a tokenizer of 256 bytes plus a few special tokens, made on the spot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paceline.config.sections.data import DataSection
from paceline.config.sections.model import ModelSection
from paceline.data.prepare.prepare import Prepared, prepare
from paceline.data.rows.kinds.base import row_kind
from paceline.data.token_table import DocumentBlock, TableWriter, TokenTable, encode_labels

SPECIALS = ("<|end|>", "<|im_start|>", "<|im_end|>")
QA = [{"instruction": f"Question {i}?", "input": "", "output": f"Answer {i}."} for i in range(20)]


def make_tokenizer(folder: Path, *, chat_template: str | None = None, eos: str | None = "<|end|>") -> Path:
    """A byte-level tokenizer: one token a byte, so lengths can be counted by hand."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos)
    fast.chat_template = chat_template
    fast.save_pretrained(str(folder))
    return folder


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)


def prepared_from(
    train: Any,
    tokenizer: Path,
    cache: Path,
    *,
    model: Mapping[str, Any] | None = None,
    seed: int = 1,
    rows: str = "documents",
    **data: Any,
) -> Prepared:
    """``prepare`` with sections built from plain values."""
    section = DataSection(train=train, **{"num_proc": 1, "max_length": 256, **data})
    sections = (section, ModelSection(tokenizer=str(tokenizer), **(model or {})))
    return prepare(*sections, seed=seed, cache_dir=cache, kind=row_kind(rows))


def make_table(
    path: Path,
    lengths: Sequence[int],
    *,
    datasets: Sequence[int] | None = None,
    weights: tuple[float, ...] = (1.0,),
) -> TokenTable:
    """A table of documents whose tokens tell where they come from: token j of document i is 1000 i + j;
    the first two of even documents are unlabelled.
    """
    sizes = np.array(lengths, np.int32)
    ids = [np.arange(n, dtype=np.int32) + 1000 * i for i, n in enumerate(lengths)]
    coded = [encode_labels(x, np.arange(len(x)) >= (0 if i % 2 else 2)) for i, x in enumerate(ids)]
    keys = np.arange(len(lengths), dtype=np.uint64)
    which = np.zeros(len(lengths), np.int32) if datasets is None else np.array(datasets, np.int32)
    writer = TableWriter(path)
    for part in np.array_split(np.arange(len(lengths)), 3):
        block = [coded[i] for i in part]
        flat = np.concatenate(block) if block else np.empty(0, np.int32)
        writer.write(
            DocumentBlock(
                flat,
                sizes[part],
                np.maximum(sizes[part] - 2, 0),
                keys[part],
                which[part],
                part.astype(np.int64),
            )
        )
    writer.close()
    return TokenTable(path, weights=weights)
