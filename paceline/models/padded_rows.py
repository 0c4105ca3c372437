"""From a flat batch to one padded row a document and back, by gathers alone: their backward is a gather too,
and no size depends on values, so that the host never waits for a device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.models.autograd import Function, FunctionContext


@dataclass(frozen=True)
class PaddedRows:
    """Where the ``T`` tokens of ``D`` documents lie, ``L`` being the longest; all on the batch's device.

    index  int64 [D, L]  the token of each place (the last one, or any, where there is none)
    real   bool [D, L]   whether there is one; padding is at the end of a row
    flat   int64 [T]     the place of each token in the rows laid end to end
    """

    index: Tensor
    real: Tensor
    flat: Tensor

    @staticmethod
    def of(cu_seqlens: Tensor, longest: int, tokens: int) -> PaddedRows:
        """Return the places of documents with boundaries ``cu_seqlens`` [D + 1], 0 to ``tokens``."""
        bounds = cu_seqlens.long()
        offsets = torch.arange(longest, device=bounds.device)
        real = offsets[None, :] < (bounds[1:] - bounds[:-1])[:, None]
        index = (bounds[:-1, None] + offsets[None, :]).clamp_(max=max(tokens - 1, 0))
        token = torch.arange(tokens, device=bounds.device)
        document = torch.searchsorted(bounds[1:], token, right=True)
        return PaddedRows(index, real, document * longest + token - bounds[document])

    def pad(self, x: Tensor) -> Tensor:
        """[T, …] -> [D, L, …]; what stands where no token is has no gradient."""
        return _Pad.apply(x, self.index, self.flat)

    def unpad(self, x: Tensor) -> Tensor:
        """[D, L, …] -> [T, …]."""
        return _Unpad.apply(x, self.index, self.real, self.flat)


class _PadContext(FunctionContext):
    saved_tensors: tuple[Tensor]  # flat


class _UnpadContext(FunctionContext):
    saved_tensors: tuple[Tensor, Tensor]  # index, real


class _Pad(Function):
    @staticmethod
    def forward(ctx: _PadContext, x: Tensor, index: Tensor, flat: Tensor) -> Tensor:
        ctx.save_for_backward(flat)
        return x[index]

    @staticmethod
    def backward(ctx: _PadContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        (flat,) = ctx.saved_tensors
        return grad.flatten(0, 1).index_select(0, flat), None, None


class _Unpad(Function):
    @staticmethod
    def forward(ctx: _UnpadContext, x: Tensor, index: Tensor, real: Tensor, flat: Tensor) -> Tensor:
        ctx.save_for_backward(index, real)
        return x.flatten(0, 1).index_select(0, flat)

    @staticmethod
    def backward(ctx: _UnpadContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        index, real = ctx.saved_tensors
        padding = ~real.reshape(*real.shape, *(1 for _ in grad.shape[1:]))
        return grad[index].masked_fill_(padding, 0.0), None, None, None
