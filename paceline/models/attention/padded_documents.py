"""From a flat batch to one padded row a document and back, by gathers alone. Their backward is a gather too,
and no size depends on values, so the host never waits for a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from paceline.models.typed_autograd import Function, FunctionContext


@dataclass(frozen=True)
class PaddedRows:
    """Indexes of the ``T`` tokens of ``D`` documents with longest length ``L``; all on the batch's device.

    index  int64 [D, L]  the token at each position (padding: the last token, or any)
    real   bool [D, L]   whether the position has a token; padding is at the end of a row
    flat   int64 [T]     the position of each token in the concatenated rows
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
        """[T, …] -> [D, L, …]; padding has no gradient."""
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


SHORTEST = 0.75  # of a group's longest document: shorter ones begin a group of their own
CHUNK = 64  # tokens; scans compute whole chunks of this size, so that shorter documents cost the same


@dataclass(frozen=True)
class DocumentsByLength:
    """Positions of the ``T`` tokens of a flat batch in the concatenated rows of all groups.

    sizes   (documents, longest) of each group
    places  of the tokens in those rows, as one row [1, sum of documents · longest]; None if all documents are
            equally long: the rows are then the batch itself, reshaped
    """

    sizes: tuple[tuple[int, int], ...]
    places: PaddedRows | None

    @staticmethod
    def of(bounds: Sequence[int], device: torch.device) -> DocumentsByLength:
        """Group documents with boundaries ``bounds`` (D + 1 ints)."""
        lengths = [end - start for start, end in pairwise(bounds)]
        if len(set(lengths)) == 1:
            return DocumentsByLength(((len(lengths), lengths[0]),), None)
        groups = grouped(lengths)
        sizes = tuple((len(group), lengths[group[0]]) for group in groups)
        starts, ends, first, row = (
            [],
            [],
            [0] * len(lengths),
            0,
        )  # first: the place of a document's first token
        for group, (_, longest) in zip(groups, sizes, strict=True):
            for number in group:
                starts.append(bounds[number])
                ends.append(bounds[number + 1])
                first[number] = row
                row += longest
        widths = [longest for count, longest in sizes for _ in range(count)]
        table = torch.tensor([starts, ends, widths, first, list(bounds[:-1]), lengths])
        # one copy to the device for all six
        start, end, width, offset, begin, length = table.to(device, non_blocking=True)
        of_place = torch.repeat_interleave(start - (width.cumsum(0) - width), width, output_size=row)
        index = torch.arange(row, device=device) + of_place
        real = index < torch.repeat_interleave(end, width, output_size=row)
        of_token = torch.repeat_interleave(offset - begin, length, output_size=bounds[-1])
        flat = torch.arange(bounds[-1], device=device) + of_token
        return DocumentsByLength(sizes, PaddedRows(index.clamp_(max=bounds[-1] - 1)[None], real[None], flat))

    def rows(self, x: Tensor) -> list[Tensor]:
        """[T, …] -> [documents, longest, …] of each group; padding has no gradient."""
        if self.places is None:
            return [x.view(*self.sizes[0], *x.shape[1:])]
        counts = [documents * longest for documents, longest in self.sizes]
        parts = torch.split(self.places.pad(x).squeeze(0), counts)
        return [part.view(*size, *x.shape[1:]) for part, size in zip(parts, self.sizes, strict=True)]

    def flat(self, rows: Sequence[Tensor]) -> Tensor:
        """[documents, longest, …] of each group -> [T, …]."""
        if self.places is None:
            return rows[0].flatten(0, 1)
        return self.places.unpad(torch.cat([part.flatten(0, 1) for part in rows])[None])


def grouped(lengths: Sequence[int]) -> list[list[int]]:
    """Return the numbers of the documents in groups, the longest document of each group first."""
    groups: list[list[int]] = []
    least = 0.0
    for number in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        padded = -(-lengths[number] // CHUNK) * CHUNK
        if not groups or padded < least:
            groups.append([])
            least = SHORTEST * padded
        groups[-1].append(number)
    return groups
