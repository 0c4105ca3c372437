"""Compute a prompt that several documents of a micro-batch share once in the trunk, while attention sees
every document whole.

A causal model's hidden states of a prompt depend on the prompt alone, so this is exact without dropout.
Norms, projections and MLPs run on the kept tokens. For attention the projected queries, keys and values are
expanded to all tokens; only the kept tokens of its output are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from paceline.models.typed_autograd import Function, FunctionContext
from paceline.protocols.batch import Batch

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True)
class SharedPrompts:
    """Index maps between all T tokens of a flat micro-batch and the K that are computed.

    keep    int64 [K]   indices in the full batch of the kept tokens
    expand  int64 [T]   for each token of the full batch its index among the kept ones
    copies  (index in the full batch, index among the kept ones, length) of each prompt that is not computed
            again
    """

    keep: Tensor
    expand: Tensor
    copies: tuple[tuple[int, int, int], ...]

    @staticmethod
    def of(batch: Batch) -> SharedPrompts | None:
        """Return the index maps of ``batch.shared``, on the batch's device; None if nothing is shared."""
        if not any(batch.shared):
            return None
        keep: list[int] = []
        expand: list[int] = []
        copies: list[tuple[int, int, int]] = []
        owner = kept = 0  # where the last document with a prompt of its own begins among the kept tokens
        for (start, end), shared in zip(pairwise(batch.cu_seqlens.tolist()), batch.shared, strict=True):
            if shared:
                copies.append((start, owner, shared))
            else:
                owner = kept
            # The shared prompt is the owner's tokens; the document's own follow among the kept ones.
            expand += [*range(owner, owner + shared), *range(kept, kept + end - start - shared)]
            keep += range(start + shared, end)
            kept += end - start - shared
        device = batch.input_ids.device
        kept_at, own_at = (batch.sent(torch.tensor(m), device) for m in (keep, expand))
        return SharedPrompts(kept_at, own_at, tuple(copies))

    def kept(self, full: Tensor, dim: int) -> Tensor:
        """Select the K kept entries of T along ``dim``."""
        return full.index_select(dim, self.keep)

    def full(self, kept: Tensor, dim: int) -> Tensor:
        """Expand K entries along ``dim`` to all T; in the backward gradients of copies are added to their
        original's, in a fixed order.
        """
        return _Full.apply(kept, self, dim)


class _FullContext(FunctionContext):
    shared: SharedPrompts
    dim: int


class _Full(Function):
    """``index_select`` whose backward adds slices instead of single entries."""

    @staticmethod
    def forward(ctx: _FullContext, kept: Tensor, shared: SharedPrompts, dim: int) -> Tensor:
        ctx.shared, ctx.dim = shared, dim
        return kept.index_select(dim, shared.expand)

    @staticmethod
    def backward(ctx: _FullContext, grad: Tensor) -> tuple[Tensor, None, None]:
        shared, dim = ctx.shared, ctx.dim
        # then whole slices are added: ``index_add`` has no fixed order on a device
        kept_grad = grad.index_select(dim, shared.keep)
        for start, original, length in shared.copies:
            kept_grad.narrow(dim, original, length).add_(grad.narrow(dim, start, length))
        return kept_grad, None, None


def draws_at_random(trunk: nn.Module, config: PreTrainedConfig) -> bool:
    """Return whether the model uses dropout in training: two copies of a prompt would then differ."""
    layers = any(isinstance(module, nn.Dropout) and module.p > 0 for module in trunk.modules())
    return layers or any(
        bool(getattr(config, name, 0.0))
        for name in ("attention_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop")
    )
