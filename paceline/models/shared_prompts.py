"""One computation for what documents of a micro-batch begin with: the trunk sees a shared prompt once, attention sees every document whole.

A causal model's hidden states of a prompt depend on the prompt alone, so this is exact where nothing is drawn at random (dropout). Norms, projections and
MLPs run on the kept tokens; for attention the projected queries, keys and values are laid out in full, and of its output the kept tokens go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from paceline.protocols.batch import Batch


@dataclass(frozen=True)
class SharedPrompts:
    """Where the tokens of a flat micro-batch lie among the kept ones.

    keep    int64 [K]   places in the full batch of the tokens that are computed
    expand  int64 [T]   for each token of the full batch its place among the kept ones
    copies  (place in the full batch, place among the kept ones, length) of each beginning that was left out
    """

    keep: Tensor
    expand: Tensor
    copies: tuple[tuple[int, int, int], ...]

    @staticmethod
    def of(batch: Batch) -> SharedPrompts | None:
        """What ``batch.shared`` says, as indices on its device; None where nothing is shared."""
        if not any(batch.shared):
            return None
        keep: list[int] = []
        expand: list[int] = []
        copies: list[tuple[int, int, int]] = []
        owner = kept = 0  # of the document that stands for itself: its place among the kept tokens
        for (start, end), shared in zip(pairwise(batch.cu_seqlens.tolist()), batch.shared, strict=True):
            if shared:
                copies.append((start, owner, shared))
            else:
                owner = kept
            expand += [*range(owner, owner + shared), *range(kept, kept + end - start - shared)]
            keep += range(start + shared, end)
            kept += end - start - shared
        device = batch.input_ids.device
        return SharedPrompts(torch.tensor(keep, device=device), torch.tensor(expand, device=device), tuple(copies))

    def kept(self, full: Tensor, dim: int) -> Tensor:
        """Of T entries along ``dim`` the K that are kept."""
        return full.index_select(dim, self.keep)

    def full(self, kept: Tensor, dim: int) -> Tensor:
        """Of K entries along ``dim`` all T; gradients of copies are added to their original's, in a fixed order."""
        return _Full.apply(kept, self, dim)  # type: ignore[no-any-return, no-untyped-call]


class _Full(torch.autograd.Function):
    """``index_select`` whose backward adds slices instead of single entries."""

    @staticmethod
    def forward(ctx: Any, kept: Tensor, shared: SharedPrompts, dim: int) -> Tensor:
        ctx.shared, ctx.dim = shared, dim
        return kept.index_select(dim, shared.expand)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        shared, dim = ctx.shared, ctx.dim
        found = grad.index_select(dim, shared.keep)
        for place, original, length in shared.copies:
            found.narrow(dim, original, length).add_(grad.narrow(dim, place, length))
        return found, None, None


def draws_at_random(trunk: nn.Module, config: Any) -> bool:
    """Whether a forward in training drops anything: then two copies of a prompt would differ."""
    layers = any(isinstance(module, nn.Dropout) and module.p > 0 for module in trunk.modules())
    return layers or any(bool(getattr(config, name, 0.0)) for name in ("attention_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop"))  # fmt: skip
