"""Attention by torch's ``flex_attention`` (Dong et al. 2024, arXiv:2412.05496), compiled for the device:
capped scores, and block masks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.plan.model.kernels import FLEX_MIN_WIDTH


class FlexCall(Protocol):
    """``flex_call``, compiled or not."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        first: Tensor,
        last: Tensor,
        blocks: tuple[Tensor, ...],
        scale: float,
        softcap: float | None,
        want_sums: bool,
    ) -> tuple[Tensor, Tensor | None]: ...


def flex_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    first: Tensor,
    last: Tensor,
    blocks: tuple[Tensor, ...],
    scale: float,
    softcap: float | None,
    want_sums: bool,
) -> tuple[Tensor, Tensor | None]:
    """query [1, H, T, D], key [1, K, S, D], value [1, K, S, E] -> [1, H, T, E] and, if wanted, fp32
    log-sum-exps [1, H, T]. ``first``, ``last``, ``blocks``: see ``VisibleKeys``.

    The mask depends only on tensors: no window, length or document is a constant of the compiled graph.
    """
    from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

    def seen(batch: Tensor, head: Tensor, query_index: Tensor, to: Tensor) -> Tensor:
        return (to >= first[query_index]) & (to <= last[query_index])

    def capped(score: Tensor, batch: Tensor, head: Tensor, query_index: Tensor, to: Tensor) -> Tensor:
        assert softcap is not None
        return torch.tanh(score / softcap) * softcap

    # in the order of BlockMask's fields
    a, b, c, d, e, f, g, h = blocks
    mask = BlockMask((query.shape[2], key.shape[2]), a, b, c, d, e, f, g, h, (BLOCK, BLOCK), seen)
    out, aux = flex_attention(
        query,
        key,
        value,
        score_mod=None if softcap is None else capped,
        block_mask=mask,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
        kernel_options={"BACKEND": "TRITON"},  # the one for decoding is chosen by length: another graph
        return_aux=AuxRequest(lse=want_sums),
    )
    return out, aux.lse


def compiled_flex(backend: str = "inductor") -> FlexCall:
    """Return ``flex_call`` compiled once for all numbers of tokens and documents, and anew for other heads,
    dtypes, scales or caps.
    """
    # ``fullgraph``: a break would silently run flex_attention unfused, with all scores in memory.
    compiled: FlexCall = torch.compile(flex_call, fullgraph=True, backend=backend)

    def call(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        first: Tensor,
        last: Tensor,
        blocks: tuple[Tensor, ...],
        scale: float,
        softcap: float | None,
        want_sums: bool,
    ) -> tuple[Tensor, Tensor | None]:
        for x in (query, key, value, *blocks):
            # Tokens, and rows of blocks, differ from batch to batch.
            torch._dynamo.mark_dynamic(x, 2)
        for x in (first, last):
            torch._dynamo.mark_dynamic(x, 0)
        # Their indexes: the number of columns differs too.
        for x in blocks[1::2]:
            torch._dynamo.mark_dynamic(x, 3)
        # a cap that differs between two models would become a number that the kernel cannot take
        with torch._dynamo.config.patch(specialize_float=True):
            return compiled(query, key, value, first, last, blocks, scale, softcap, want_sums)

    return call


def documents_flex(
    flex: FlexCall,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seen: VisibleKeys,
    *,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """query [1, H, T, D], key [1, K, S, D], value [1, K, S, E] -> [1, H, T, E]; ``sinks``: [H], each one more
    logit of the softmax without a value, uncapped.

    Triton needs heads of at least 16: smaller ones are padded with zeros.
    """
    value_width = value.shape[-1]
    query, key, value = (
        F.pad(x, (0, short)) if (short := FLEX_MIN_WIDTH - x.shape[-1]) > 0 else x
        for x in (query, key, value)
    )
    out, sums = flex(query, key, value, seen.first, seen.last, seen.blocks, scale, softcap, sinks is not None)
    if sums is not None and sinks is not None:
        # exp(sums) / (exp(sums) + exp(sink)): the part of the softmax that is not the sink's.
        share = torch.sigmoid(sums - sinks.float()[None, :, None])
        out = (out * share.unsqueeze(-1)).to(query.dtype)
    return out[..., :value_width]


BLOCK = 128


@dataclass(frozen=True)
class VisibleKeys:
    """``first``, ``last``: int32 [T], a query's first and last key (counted over the batch's S keys).

    ``blocks``: int32 tables, by block of queries, then by block of keys. Each lists first the blocks that
    need the mask, then the fully visible blocks: their number [1, 1, N] and indexes [1, 1, N, M].
    """

    first: Tensor
    last: Tensor
    blocks: tuple[Tensor, ...]

    @staticmethod
    @torch.no_grad()
    def of(
        cu_queries: Tensor,
        cu_keys: Tensor,
        counts: tuple[int, int],
        window: int | None,
        causal: bool = True,
        ahead: Tensor | None = None,
    ) -> VisibleKeys:
        """Return the keys that queries see (``counts`` of both); boundaries are int32 [D + 1] on the result's
        device. ``ahead``: int64 [T], a later last key of some causal queries, which no window hides.

        A document's queries are its last tokens if it has more keys than queries.
        """
        queries, keys = counts
        position = torch.arange(queries, device=cu_queries.device)
        # int64 [T]: the document of each query; ``right`` skips documents without tokens.
        document = torch.searchsorted(cu_queries[1:], position, right=True)
        # Aligned at the document's end: its last query sees its last key.
        own = position - cu_queries[1:][document] + cu_keys[1:][document]
        first = cu_keys[:-1][document].long()
        last = own if causal else cu_keys[1:][document].long() - 1
        if window is not None:
            first = torch.maximum(first, own - (window - 1))
            last = torch.minimum(last, own + (window - 1))
        last = last if ahead is None else torch.maximum(last, ahead)
        return VisibleKeys(first.int(), last.int(), _blocks(first, last, _count(queries), _count(keys)))


def _count(tokens: int) -> int:
    """Return the number of blocks; at least two, as torch.compile makes a size of one a constant."""
    return max(2, -(-tokens // BLOCK))


def _blocks(first: Tensor, last: Tensor, rows: int, columns: int) -> tuple[Tensor, ...]:
    """Return ``VisibleKeys.blocks``. Row i needs the columns from ``low`` to ``high``; all its queries fully
    see those from ``inner`` up to ``outer``.
    """
    row = torch.arange(rows, device=first.device) * BLOCK
    # First and last never decrease, so a block's bounds are those of its first and last query.
    begin = row.clamp(max=first.shape[0] - 1)
    end = (row + BLOCK - 1).clamp(max=first.shape[0] - 1)
    low, high = first[begin] // BLOCK, last[end] // BLOCK + 1
    # Rounded up: the first block that lies wholly behind the latest first key.
    inner = (first[end] + BLOCK - 1) // BLOCK
    outer = torch.maximum((last[begin] + 1) // BLOCK, inner)
    added = row >= first.shape[0]  # to make two rows; it sees nothing
    low, inner, outer = (torch.where(added, high, x) for x in (low, inner, outer))
    column = torch.arange(columns, device=first.device)
    touching, touched = _rows_over(column, low, high)
    covered, wholly = _rows_over(column, inner, outer)
    return (
        *_outside(low, inner, outer, high, columns),
        *_outside(inner, outer, outer, outer, columns),
        *_outside(touching, covered, wholly, touched, rows),
        *_outside(covered, wholly, wholly, wholly, rows),
    )


def _rows_over(column: Tensor, begin: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each column the rows [a, b) whose [begin, end) contains it; begin and end never decrease."""
    return torch.searchsorted(end, column, right=True), torch.searchsorted(begin, column, right=True)


def _outside(low: Tensor, inner: Tensor, outer: Tensor, high: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return, for each of N rows, the number and the indexes of the blocks in [low, inner) and [outer, high):
    int32 [1, 1, N] and [1, 1, N, width].
    """
    before = inner - low
    # A table of fixed width [N, width]; entries beyond the count are ignored.
    offset = torch.arange(width, device=low.device)[None, :]
    after = (outer - before)[:, None] + offset
    places = torch.where(offset < before[:, None], low[:, None] + offset, after)
    count = before + high - outer
    return count.int()[None, None], places.clamp(max=width - 1).int()[None, None]
