"""Attention over documents whose tokens are sharded over a context-parallel group (see ``context_parallel``).

Ulysses (Jacobs et al. 2023) exchanges token shards for head shards, and back after attention. All-gather (as
in Llama 3's training, Dubey et al. 2024, section 3.3.2) gathers keys and values, and each rank computes its
own queries: only its first document may have begun on an earlier rank. A device's kernels take documents with
more keys than queries in the same call. On a CPU the tail of that document is combined from two parts by
their log-sum-exps (as in Liu et al. 2023, ring attention).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.models.attention.context_parallel import ULYSSES, shared_heads
from paceline.models.attention.reference_attention import (
    AttentionOptions,
    _flash,
    _flash_backward,
    scores_attention,
)
from paceline.models.attention.sequence_info import PackedSequenceInfo
from paceline.models.compute_dtype import product_dtype
from paceline.models.parallel.tp_regions import block_of, exchange, gather
from paceline.models.typed_autograd import Function, FunctionContext

_HEADS, _TOKENS = 1, 2
ROWS = 1024  # queries per masked call
Inner = Callable[..., Tensor]


@torch.compiler.disable
def context_attention(
    inner: Inner,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: PackedSequenceInfo,
    options: AttentionOptions,
) -> Tensor:
    """query [1, H, T/n, D], key and value [1, K, T/n, D] -> [1, H, T/n, D]; ``inner`` is attention on whole
    documents, ``options`` its options.

    Collective over the context-parallel group.
    """
    assert layout.context is not None
    group = layout.context.group
    if layout.context.method == ULYSSES:
        heads, ranks = query.shape[_HEADS], group.size()
        key, value = (shared_heads(x, heads, ranks) for x in (key, value))
        q, k, v = (exchange(x, group, split=_HEADS, join=_TOKENS) for x in (query, key, value))
        sinks = None if options.sinks is None else block_of(options.sinks, group, 0)
        out = inner(q, k, v, layout.whole(), options._replace(sinks=sinks))
        return exchange(out, group, split=_TOKENS, join=_HEADS)
    fetched, width = gather(torch.cat([key, value], dim=-1), group, _TOKENS, partial=True), key.shape[-1]
    size = query.shape[_TOKENS]
    start = group.rank() * size
    block = layout.block(start, start + size)
    # from the first token of the document that this block begins in, to the block's end
    seen = fetched[:, :, start + size - (block.keys or block).bounds[-1] : start + size]
    return inner(query, seen[..., :width], seen[..., width:], block, options)


def tail_and_rest(
    inner: Inner,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: PackedSequenceInfo,
    options: AttentionOptions,
) -> Tensor:
    """Attention for kernels that need as many keys as queries. It computes the tail of the document that
    began earlier (the first of ``layout``, which has ``keys``), then calls ``inner`` on the others. Shapes as
    in ``documents_varlen``.
    """
    assert layout.keys is not None
    tail, seen, end = layout.bounds[1], layout.keys.bounds[1], layout.bounds[-1]
    out = attend_tail(query[:, :, :tail], key[:, :, :seen], value[:, :, :seen], options)
    if tail == end:
        return out
    rest = layout.block(tail, end)
    others = [x[:, :, n:] for x, n in ((query, tail), (key, seen), (value, seen))]
    return torch.cat([out, inner(*others, rest, options)], dim=_TOKENS)


def attend_tail(query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
    """The last q queries of one document over its first k tokens, causal with aligned ends; shapes as in
    ``context_attention``.
    """
    scale, dropout, window, softcap, sinks = options
    # Keys before the first query's window are never read.
    if window is not None:
        reach = query.shape[_TOKENS] + window - 1
        key, value = key[:, :, -reach:], value[:, :, -reach:]
    plain = softcap is None and sinks is None and window is None and query.shape[-1] == value.shape[-1]
    if plain and dropout == 0.0 and query.device.type == "cpu":
        return CpuTail.apply(query, key, value, scale, product_dtype(query.dtype, query.device))
    pieces: list[Tensor] = []
    before = key.shape[_TOKENS] - query.shape[_TOKENS]
    # a mask of q · k booleans for a long document would be gigabytes
    for rows in torch.split(query, ROWS, dim=_TOKENS):
        seen = before + sum(p.shape[_TOKENS] for p in pieces) + rows.shape[_TOKENS]
        mask = tail_mask(rows.shape[_TOKENS], seen, window, query.device)
        k, v = key[:, :, :seen], value[:, :, :seen]
        if softcap is not None or sinks is not None:
            pieces.append(scores_attention(rows, k, v, mask, options))
            continue
        grouped = rows.shape[_HEADS] != k.shape[_HEADS]
        pieces.append(
            F.scaled_dot_product_attention(
                rows, k, v, attn_mask=mask, dropout_p=dropout, scale=scale, enable_gqa=grouped
            )
        )
    return torch.cat(pieces, dim=_TOKENS)


def tail_mask(rows: int, seen: int, window: int | None, device: torch.device) -> Tensor:
    """Return bool [rows, seen]: True where one of the last ``rows`` of ``seen`` tokens attends."""
    queries = torch.arange(seen - rows, seen, device=device)[:, None]
    to = torch.arange(seen, device=device)[None, :]
    mask = to <= queries
    return mask if window is None else mask & (to > queries - window)


class _TailContext(FunctionContext):
    saved_tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
    scale: float
    product: torch.dtype


class CpuTail(Function):
    """``attend_tail`` with torch's CPU flash kernel: full attention to the tokens before the block, causal
    attention within it, combined by their log-sum-exps.

    Memory grows with q + k, not q · k. query [1, H, q, D], key and value [1, K, k, D], q < k.
    """

    @staticmethod
    def forward(
        ctx: _TailContext, query: Tensor, key: Tensor, value: Tensor, scale: float, product: torch.dtype
    ) -> Tensor:
        """Return the attention output [1, H, q, D]."""
        q, k, v = query.to(product), key.to(product), value.to(product)
        cut = k.shape[_TOKENS] - q.shape[_TOKENS]
        before, before_sum = _flash(q, k[:, :, :cut], v[:, :, :cut], 0.0, False, scale=scale)
        within, within_sum = _flash(q, k[:, :, cut:], v[:, :, cut:], 0.0, True, scale=scale)
        total = torch.logaddexp(before_sum, within_sum)
        shares = [(x - total).exp().unsqueeze(-1) for x in (before_sum, within_sum)]
        out = (before * shares[0] + within * shares[1]).to(query.dtype)
        ctx.save_for_backward(query, key, value, out, total)
        ctx.scale, ctx.product = scale, product
        return out

    @staticmethod
    def backward(ctx: _TailContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Run the kernel's backward on both parts, each with the combined output and log-sum-exps."""
        query, key, value, out, total = ctx.saved_tensors
        g, q, k, v, out = (x.to(ctx.product) for x in (grad, query, key, value, out))
        cut = k.shape[_TOKENS] - q.shape[_TOKENS]
        before = _flash_backward(g, q, k[:, :, :cut], v[:, :, :cut], out, total, 0.0, False, scale=ctx.scale)
        within = _flash_backward(g, q, k[:, :, cut:], v[:, :, cut:], out, total, 0.0, True, scale=ctx.scale)
        grad_key, grad_value = (torch.cat([before[i], within[i]], dim=_TOKENS) for i in (1, 2))
        return (
            (before[0] + within[0]).to(query.dtype),
            grad_key.to(key.dtype),
            grad_value.to(value.dtype),
            None,
            None,
        )
