"""Attention of packed documents in layers that torch.compile traces: operators that dynamo puts into
the graph as they are, so that no graph breaks there.

An operator gets the documents' boundaries as a tensor on the host. A tuple would be a constant of the graph,
and every micro-batch would compile another graph.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.models.attention.flash_varlen import documents_varlen
from paceline.models.attention.kernel_choice import AttentionKernels, traced_kernel
from paceline.models.attention.padded_documents import PaddedRows
from paceline.models.attention.reference_attention import (
    AttentionOptions,
    DocumentOptions,
    document_mask,
    documents_generic,
    documents_padded,
    equal_rows,
    flash_backward,
    flash_forward,
)
from paceline.models.attention.sequence_info import PackedSequenceInfo
from paceline.models.compute_dtype import product_dtype
from paceline.plan.model.kernels import (
    DOCUMENT_FLASH,
    FLEX,
    PADDED_SDPA,
    VARLEN_FLASH,
)


@torch.library.custom_op("paceline::document_flash", mutates_args=())
def document_flash(
    query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, scale: float, causal: bool = True
) -> tuple[Tensor, Tensor]:
    """``reference_attention.CpuDocuments`` as an operator: query [1, H, T, D], key and value [1, K, T, D],
    int64 bounds [documents + 1] -> the attention [1, H, T, D] and its log-sum-exps [1, H, T].
    """
    edges = tuple(bounds.tolist())
    product = product_dtype(query.dtype, query.device)
    out, sums = flash_forward(query, key, value, DocumentOptions(edges, scale, product, causal))
    if equal_rows(edges, query.shape[2]):
        return out, sums[0].transpose(0, 1).flatten(1).unsqueeze(0)
    # an operator returns a fixed number of tensors: the documents' sums in one
    return out, torch.cat(sums, 2)


@document_flash.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, scale: float, causal: bool = True
) -> tuple[Tensor, Tensor]:
    _, heads, tokens, width = query.shape
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    out = query.new_empty(1, tokens, heads, width).transpose(1, 2)
    return out, query.new_empty(1, heads, tokens, dtype=wide)


@torch.library.custom_op("paceline::document_flash_backward", mutates_args=())
def document_flash_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    bounds: Tensor,
    scale: float,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value, in their shapes."""
    edges = tuple(bounds.tolist())
    if rows := equal_rows(edges, query.shape[2]):
        # [1, H, T] -> [documents, H, t], as the kernel returned it.
        sums = [lse.view(query.shape[1], rows, -1).transpose(0, 1)]
    else:
        sums = [lse[:, :, a:b] for a, b in pairwise(edges)]
    product = product_dtype(query.dtype, query.device)
    options = DocumentOptions(edges, scale, product, causal)
    grads = flash_backward(grad, query, key, value, out, sums, options)
    return grads[0].contiguous(), grads[1].contiguous(), grads[2].contiguous()


@document_flash_backward.register_fake
def _(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(x.new_empty(x.shape) for x in (query, key, value))  # type: ignore[return-value]


def _keep_flash(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, bounds, ctx.scale, ctx.causal = inputs
    ctx.save_for_backward(query, key, value, *output, bounds)


def _flash_gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    query, key, value, out, lse, bounds = ctx.saved_tensors
    grads = document_flash_backward(grad, query, key, value, out, lse, bounds, ctx.scale, ctx.causal)
    return *grads, None, None, None


document_flash.register_autograd(_flash_gradients, setup_context=_keep_flash)


@torch.library.custom_op("paceline::document_scores", mutates_args=())
def document_scores(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sinks: Tensor | None,
    bounds: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    causal: bool = True,
) -> Tensor:
    """``reference_attention.documents_generic`` without dropout as an operator: [1, H, T, D], [1, K, T, D],
    [1, K, T, E] -> [1, H, T, E]; int64 ``bounds`` on the host. The backward computes one document's scores a
    second time.
    """
    edges = tuple(bounds.tolist())
    longest = max(b - a for a, b in pairwise(edges))
    layout = PackedSequenceInfo(edges, bounds, longest, causal=causal)
    options = AttentionOptions(scale, window=window, softcap=softcap, sinks=sinks)
    out = documents_generic(query, key, value, layout, options)
    return out.transpose(1, 2).contiguous().transpose(1, 2)


@document_scores.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
    _, heads, tokens, _ = query.shape
    return query.new_empty(1, tokens, heads, value.shape[3]).transpose(1, 2)


@torch.library.custom_op("paceline::document_scores_backward", mutates_args=())
def document_scores_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sinks: Tensor | None,
    bounds: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    causal: bool,
) -> list[Tensor]:
    """Return the gradients of query, key and value, and of the sinks if there are any."""
    totals = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value)]
    of_sinks = None if sinks is None else torch.zeros_like(sinks)
    for start, end in pairwise(bounds.tolist()):
        g, q, k, v = (x[:, :, start:end] for x in (grad, query, key, value))
        grads = scores_gradients(g, q, k, v, sinks, scale, window, softcap, causal)
        for total, piece in zip(totals, grads, strict=False):
            total[:, :, start:end] = piece
        if of_sinks is not None:
            of_sinks += grads[3]
    return totals if of_sinks is None else [*totals, of_sinks]


@document_scores_backward.register_fake
def _(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, *rest: Any
) -> list[Tensor]:
    return [x.new_empty(x.shape) for x in (query, key, value, sinks) if x is not None]


def scores_gradients(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sinks: Tensor | None,
    scale: float,
    window: int | None,
    softcap: float | None,
    causal: bool = True,
) -> tuple[Tensor, ...]:
    """Return the gradients of one document's attention: softmax(mask(cap(q·kᵀ·scale))) · v, with the
    sinks as logits that have no value. Products in the inputs' dtype, the softmax in fp32 or wider.
    """
    groups, kept = query.shape[1] // key.shape[1], key.shape[1]
    wide = torch.promote_types(query.dtype, torch.float32)
    k, v = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (key, value))
    scores = torch.matmul(query, k.transpose(2, 3)).to(wide).mul_(scale)
    capped = scores if softcap is None else torch.tanh(scores / softcap).mul_(softcap)
    # bool [t, t].
    hidden = ~document_mask(query.shape[2], window, causal, query.device)
    logits = capped.masked_fill(hidden, -math.inf)
    if sinks is not None:
        sink = sinks.to(wide).reshape(1, -1, 1, 1).expand(*logits.shape[:3], 1)
        logits = torch.cat([logits, sink], -1)
    weights = torch.softmax(logits, -1)
    shares = weights if sinks is None else weights[..., :-1]
    low = shares.to(query.dtype)
    # [1, H, t, t]ᵀ · [1, H, t, E].
    d_value = torch.matmul(low.transpose(2, 3), grad)
    d_shares = torch.matmul(grad, v.transpose(2, 3)).to(wide)
    # Σ dL/dp · p: the softmax's backward is p (dL/dp - mean).
    mean = (d_shares * shares).sum(-1, keepdim=True)
    d_scores = (d_shares - mean).mul_(shares)
    if softcap is not None:
        d_scores.mul_(1 - (capped / softcap).square_())
    d_scores = d_scores.mul_(scale).to(query.dtype)
    d_query, d_key = torch.matmul(d_scores, k), torch.matmul(d_scores.transpose(2, 3), query)
    if groups > 1:
        # Query heads that share a key head add their gradients.
        d_key, d_value = (x.view(1, kept, groups, *x.shape[2:]).sum(2) for x in (d_key, d_value))
    if sinks is None:
        return d_query, d_key, d_value
    return d_query, d_key, d_value, -(weights[..., -1:] * mean).sum((0, 2, 3)).to(sinks.dtype)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.scale, ctx.window, ctx.softcap, ctx.causal = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    how = ctx.scale, ctx.window, ctx.softcap, ctx.causal
    grads = document_scores_backward(grad, *ctx.saved_tensors, *how)
    return *grads[:3], grads[3] if len(grads) > 3 else None, None, None, None, None, None


document_scores.register_autograd(_gradients, setup_context=_keep)


class TracedLayout(NamedTuple):
    """The part of ``PackedSequenceInfo`` that kernels of devices read, with a symbol for the longest
    document.
    """

    cu_seqlens: Tensor
    max_seqlen: int
    padded: PaddedRows | None
    causal: bool
    keys: None = None
    blocks: tuple[()] = ()  # a micro-batch that has some runs uncompiled


def _any_layout(layout: PackedSequenceInfo, tokens: int, *, rows: bool) -> Any:
    # a dim, which torch.compile keeps as a symbol; a number would be a constant of the graph
    longest = layout.span.shape[0]
    padded = PaddedRows.of(layout.cu_seqlens, longest, tokens) if rows else None
    return TracedLayout(layout.cu_seqlens, longest, padded, layout.causal)


def traced_attention(
    kernels: AttentionKernels | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: PackedSequenceInfo,
    options: AttentionOptions,
) -> Tensor:
    """``packed_attention`` inside a compiled layer: [1, H, T, D], [1, K, T, D] -> [1, T, H, D].

    The kernel is that for a document longer than the window, which also computes shorter ones. Everything
    that differs from batch to batch is a tensor, or a number that torch.compile keeps as a symbol.
    """
    assert layout.context is None, "context parallelism is refused before the start"
    if layout.shared is not None:
        query, key, value = (x.index_select(2, layout.shared.expand) for x in (query, key, value))
    scale, dropout, window, softcap, sinks = options
    kernel = traced_kernel(
        query.device.type,
        str(query.dtype),
        query.shape[-1],
        value.shape[-1],
        window is not None,
        softcap is not None,
        sinks is not None,
        dropout > 0,
    )
    if kernels is not None:
        kernels.traced = kernel
    if kernel == VARLEN_FLASH:
        edges = _any_layout(layout, query.shape[2], rows=False)
        out = documents_varlen(query, key, value, edges, options)
    elif kernel == PADDED_SDPA:
        edges = _any_layout(layout, query.shape[2], rows=True)
        out = documents_padded(query, key, value, edges, options)
    elif kernel == DOCUMENT_FLASH:
        out, _ = document_flash(query, key, value, layout.on_host, scale, layout.causal)
    elif kernel == FLEX or dropout:
        raise NotImplementedError(f"{kernel} and attention dropout on a CPU are not part of a compiled layer")
    else:
        how = scale, window, softcap, layout.causal
        out = document_scores(query, key, value, sinks, layout.on_host, *how)
    if layout.shared is not None:
        out = out.index_select(2, layout.shared.keep)
    return out.transpose(1, 2).contiguous()
