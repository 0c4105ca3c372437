"""Attention that selects or compresses keys: indexers stay frozen, and unused compressors get zero gradients.

DeepSeek-V3.2's lightning indexer scores the keys, and each query reads the ``index_topk`` best. The selection
is discrete: no gradient of a model's loss reaches the indexer. DeepSeek trains it by a loss of its own, its
divergence from the attention over all keys (DeepSeek-V3.2, section 2.1.1), which is not computed here.
DeepSeek-V4's compressors make one key from ``compress_rate`` tokens, and none from fewer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel

_SELECTS, _COMPRESSES = "Indexer", "Compressor"  # suffixes of Transformers' class names


def selectors(hf: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield (name, module) of the parts of ``hf`` that select keys."""
    for name, module in hf.named_modules():
        if _is_a(module, _SELECTS):
            yield name, module


def selects_keys(hf: nn.Module) -> bool:
    """Whether an attention of ``hf`` selects or compresses keys."""
    return any(_is_a(module, _SELECTS) or _is_a(module, _COMPRESSES) for module in hf.modules())


def freeze_selectors(hf: HFModel) -> int:
    """Freeze the parts that select keys; return their number."""
    modules = [module for _, module in selectors(hf)]
    for module in modules:
        module.requires_grad_(False)
    return len(modules)


def use_compressors(hf: HFModel) -> None:
    """Give compressors a gradient of zero in steps without a long enough document, since DDP waits for the
    gradient of every parameter.
    """
    for module in hf.modules():
        if _is_a(module, _COMPRESSES):
            module.register_forward_hook(_used)


def _used(
    module: nn.Module, _: tuple[Tensor, ...], output: tuple[Tensor, Tensor | None]
) -> tuple[Tensor, Tensor | None]:
    keys, bias = output  # [B, 1, keys, head size]
    trained = [p for p in module.parameters() if p.requires_grad]
    if keys.shape[2] or not trained or not torch.is_grad_enabled():
        return output
    return keys + torch.stack([p.sum() * 0 for p in trained]).sum().to(keys.dtype), bias


def _is_a(module: nn.Module, suffix: str) -> bool:
    return any(kind.__name__.endswith(suffix) for kind in type(module).__mro__)
