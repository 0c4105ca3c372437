"""DeepSpeed's flops profiler for models with fused kernels: registers its hooks early enough, and counts
products from shapes.

By itself it registers its hooks between the root's own (so the root's latency is the time since 1970 and its
counts are lost), and counts calls of ``nn.Linear`` and ``torch.matmul``, while here projections, gates and
the head are computed inside kernels, without calling those modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.model import RootModule

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from paceline.strategies.deepspeed.engine import Engine

SAID = (
    "flops profile: only matrix products are counted, from shapes: tokens × weight for every layer"
    " (all tokens of the micro-batch, for the head its labelled positions), 2 × length² × width for"
    " attention, per document and as if it were not causal. A layer without latency is computed"
    " inside a kernel of the module around it, which has its time."
)


def is_due(engine: Engine) -> bool:
    """Return whether this window is the profiled one, and this the rank that profiles."""
    enabled = bool(engine.flops_profiler_enabled()) and engine.global_rank == 0
    return enabled and engine.global_steps == engine.flops_profiler_profile_step()


@contextmanager
def profiled(engine: Engine, root: RootModule, batch: Batch, sequence_ranks: int = 1) -> Iterator[None]:
    """Profile one micro-step inside the context. ``batch`` is this rank's; with ``sequence_ranks`` sharing
    each row it computes its part of the attention heads.
    """
    if not is_due(engine):
        yield
        return
    profiler = engine.flops_profiler
    profiler.start_profile()
    profiler.start_profile = _nothing  # a second call would wrap everything twice
    seen: list[int] = []
    trunk = root.hf.base_model
    hook = trunk.register_forward_hook(lambda module, given, out: seen.append(out[0].shape[:-1].numel()))
    try:
        yield
    finally:
        hook.remove()
        del profiler.start_profile
    count_products(root, batch, sum(seen), sequence_ranks)
    print(SAID, flush=True)


def _nothing(ignore_list: None = None) -> None:
    pass


def count_products(root: RootModule, batch: Batch, tokens: int, sequence_ranks: int = 1) -> None:
    """Set every module's multiply-adds (and FLOP, twice as many) of its own products, in the attributes that
    the profiler reads.
    """
    hf = root.hf
    config = hf.config.get_text_config()
    head = hf.get_output_embeddings() or getattr(hf, "score", None)
    labelled = int((batch.labels != IGNORE_INDEX).sum())
    lengths = document_lengths(batch)
    macs = dict[nn.Module, float]()
    for module in root.modules():
        # Linear layers: each weight is used once per token, labelled position (head) or document (score).
        rows = labelled if module is head and head is not getattr(hf, "score", None) else tokens
        rows = len(lengths) if module is getattr(hf, "score", None) else rows
        macs[module] = _weights(module, config) * rows
    width = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    for module in attention_modules(hf):
        macs[module] += 2 * sum(n * n for n in lengths) * config.num_attention_heads * width // sequence_ranks
    for module, count in macs.items():
        vars(module).update(__macs__=count, __flops__=2 * count)


def _weights(module: nn.Module, config: PretrainedConfig) -> float:
    """Return the number of a module's own weights that each token is multiplied with: of matrices all, of
    stacked experts those that a token uses, none of an embedding.
    """
    if isinstance(module, nn.Embedding):
        return 0
    found = 0.0
    for parameter in module.parameters(recurse=False):
        shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
        count = torch.Size(shape).numel()
        if len(shape) == 2:
            found += count
        elif len(shape) == 3:
            found += count * int(getattr(config, "num_experts_per_tok", None) or shape[0]) / shape[0]
    return round(found)


def attention_modules(hf: nn.Module) -> list[nn.Module]:
    """Return the modules that compute attention: those with a ``layer_idx`` and no submodule with one."""
    knowing = [m for m in hf.modules() if isinstance(getattr(m, "layer_idx", None), int)]
    return [m for m in knowing if not any(c is not m and c in knowing for c in m.modules())]


def document_lengths(batch: Batch) -> list[int]:
    """Return the number of tokens of each document of a micro-batch."""
    return [int(n) for n in batch.cu_seqlens.diff()]
