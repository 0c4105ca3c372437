"""Which keys each query of a flat batch sees, as ``flex_attention`` wants it: a first and a last key a query,
and the blocks of 128 x 128 scores that are not empty.

In a causal mask over documents, with or without a window, a query sees consecutive keys, and both ends only
grow from one query to the next. So the blocks follow from the ends by a few searches, without a mask of T x S
booleans and without a look at values by the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 128


@dataclass(frozen=True)
class VisibleKeys:
    """``first``, ``last``: int32 [T], a query's first and last key (counted over the batch's S keys).

    ``blocks``: int32 tables, by block of queries, then by block of keys, each first of the blocks that need
    the mask, then of those seen whole: their number [1, 1, N] and their places [1, 1, N, M].
    """

    first: Tensor
    last: Tensor
    blocks: tuple[Tensor, ...]

    @staticmethod
    @torch.no_grad()
    def of(cu_queries: Tensor, cu_keys: Tensor, queries: int, keys: int, window: int | None) -> VisibleKeys:
        """Return what ``queries`` see of ``keys``; boundaries int32 [D + 1] on the device that it is wanted
        on.

        A document's queries are the last of as many as it has keys.
        """
        place = torch.arange(queries, device=cu_queries.device)
        document = torch.searchsorted(cu_queries[1:], place, right=True)
        last = place - cu_queries[1:][document] + cu_keys[1:][document]
        first = cu_keys[:-1][document].long()
        if window is not None:
            first = torch.maximum(first, last - (window - 1))
        return VisibleKeys(first.int(), last.int(), _blocks(first, last, _count(queries), _count(keys)))


def _count(tokens: int) -> int:
    """Return the number of blocks; at least two, as torch.compile makes a size of one a constant."""
    return max(2, -(-tokens // BLOCK))


def _blocks(first: Tensor, last: Tensor, rows: int, columns: int) -> tuple[Tensor, ...]:
    """Return ``VisibleKeys.blocks``. Row i touches the columns from ``low`` to ``high``, and those from
    ``inner`` up to ``outer`` are seen whole by all its queries.
    """
    row = torch.arange(rows, device=first.device) * BLOCK
    begin = row.clamp(max=first.shape[0] - 1)
    end = (row + BLOCK - 1).clamp(max=first.shape[0] - 1)
    low, high = first[begin] // BLOCK, last[end] // BLOCK + 1
    inner = (first[end] + BLOCK - 1) // BLOCK
    outer = torch.maximum((last[begin] + 1) // BLOCK, inner)
    added = row >= first.shape[0]  # to make two rows; it sees nothing
    low, inner, outer = (torch.where(added, high, x) for x in (low, inner, outer))
    column = torch.arange(columns, device=first.device)
    touching, touched = _rows_over(column, low, high)
    whole, wholly = _rows_over(column, inner, outer)
    return (
        *_outside(low, inner, outer, high, columns),
        *_outside(inner, outer, outer, outer, columns),
        *_outside(touching, whole, wholly, touched, rows),
        *_outside(whole, wholly, wholly, wholly, rows),
    )


def _rows_over(column: Tensor, begin: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each column the rows [a, b) whose [begin, end) has it; both ends never fall."""
    return torch.searchsorted(end, column, right=True), torch.searchsorted(begin, column, right=True)


def _outside(low: Tensor, inner: Tensor, outer: Tensor, high: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return the number and the places of what lies in [low, inner) and [outer, high): int32 [1, 1, N] and
    [1, 1, N, width].
    """
    before = inner - low
    place = torch.arange(width, device=low.device)[None, :]
    after = (outer - before)[:, None] + place
    places = torch.where(place < before[:, None], low[:, None] + place, after)
    count = before + high - outer
    return count.int()[None, None], places.clamp(max=width - 1).int()[None, None]
