"""Multiply-adds of each module's own matrix products, from shapes: right for fused kernels too, which a
profiler that counts calls of modules does not see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.model import RootModule

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def multiply_adds(
    root: RootModule, batch: Batch, tokens: int, sequence_ranks: int = 1
) -> dict[nn.Module, float]:
    """Return every module's multiply-adds of one forward over ``batch``, its submodules' not counted.

    ``tokens``: that pass through the trunk; with ``sequence_ranks`` sharing each row, this rank has its part
    of the attention heads. Attention counts as if it were not causal.
    """
    config = root.hf.config.get_text_config()
    scores = {id(part.score) for part in root.parts if getattr(part, "score", None) is not None}
    heads = {id(head) for part in root.parts if (head := part.get_output_embeddings()) is not None}
    # The head is applied at labelled positions only.
    labelled = int((batch.labels != IGNORE_INDEX).sum())
    lengths = document_lengths(batch)
    counts = dict[nn.Module, float]()
    for module in root.modules():
        # Linear layers: each weight is used once per token, labelled position (head) or document (score).
        rows = labelled if id(module) in heads else tokens
        rows = len(lengths) if id(module) in scores else rows
        counts[module] = _weights(module, config) * rows
    for module, count in attention_products(root, batch, sequence_ranks).items():
        counts[module] += count
    return counts


def attention_products(root: RootModule, batch: Batch, sequence_ranks: int = 1) -> dict[nn.Module, float]:
    """Return the multiply-adds of queries with keys and of weights with values, by attention module."""
    config = root.hf.config.get_text_config()
    width = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    # Two products of n × n × width a document: scores, and weights times values.
    squares = 2 * sum(n * n for n in document_lengths(batch))
    count = squares * config.num_attention_heads * width // sequence_ranks
    return {module: count for part in root.parts for module in attention_modules(part)}


def _weights(module: nn.Module, config: PretrainedConfig) -> float:
    """Return the number of a module's own weights that each token is multiplied with. That is all of a
    matrix, the part of stacked experts that a token uses, and none of an embedding.
    """
    if isinstance(module, nn.Embedding):
        return 0
    if (packed := getattr(module, "quant_state", None)) is not None:  # of 4 bits: bytes, in another shape
        return torch.Size(packed.shape).numel()
    total = 0.0
    for parameter in module.parameters(recurse=False):
        # Under ZeRO-3 the parameter itself is empty between its gathers.
        shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
        count = torch.Size(shape).numel()
        if len(shape) == 2:
            total += count
        elif len(shape) == 3:
            # Stacked experts [experts, in, out]: a token is multiplied with few of them.
            total += count * int(getattr(config, "num_experts_per_tok", None) or shape[0]) / shape[0]
    return round(total)


def attention_modules(hf: nn.Module) -> Sequence[nn.Module]:
    """Return the modules that compute attention: those with a ``layer_idx`` and no submodule with one."""
    knowing = [m for m in hf.modules() if isinstance(getattr(m, "layer_idx", None), int)]
    return [m for m in knowing if not any(c is not m and c in knowing for c in m.modules())]


def document_lengths(batch: Batch) -> list[int]:
    """Return the number of tokens of each document of a micro-batch."""
    return [int(n) for n in batch.cu_seqlens.diff()]
