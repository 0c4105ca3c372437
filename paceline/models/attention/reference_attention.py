"""Attention within each document of a flat batch. Plain functions on [1, heads, T, head_dim]."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.models.attention.sequence_info import PackedSequenceInfo
from paceline.models.typed_autograd import Function, FunctionContext
from paceline.plan.model.kernels import FLASH_MULTIPLE


class AttentionOptions(NamedTuple):
    """Options of one attention call.

    scale    of the scores
    dropout  of the weights
    window   how many keys a query sees, its own included: position i attends to (i - window, i], in an
             encoder to (i - window, i + window); None: all
    softcap  scores become softcap · tanh(score / softcap) (Gemma 2)
    sinks    [H], each one more logit of the softmax, without a value (GPT-OSS)
    """

    scale: float
    dropout: float = 0.0
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None


class DocumentOptions(NamedTuple):
    """Options of one call of the CPU flash kernel.

    bounds   where each document begins, and the end of the last
    scale    of the scores
    product  the dtype the kernel computes in (fp32 if the CPU has no bf16 instructions, see ``precision``)
    causal   whether a query sees only the keys before it
    """

    bounds: tuple[int, ...]
    scale: float
    product: torch.dtype
    causal: bool = True


# called directly: ``F.scaled_dot_product_attention`` returns no log-sum-exps
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class _DocumentsContext(FunctionContext):
    saved_tensors: tuple[Tensor, ...]  # query, key, value, output, log-sum-exps
    options: DocumentOptions


class CpuDocuments(Function):
    """Attention per document with torch's CPU flash kernel, forward and backward, in one autograd node for
    all documents.

    query [1, H, T, D], key and value [1, K, T, D] with H a multiple of K (grouped-query attention); output
    [1, H, T, D] with the memory layout of [1, T, H, D].
    """

    @staticmethod
    def forward(
        ctx: _DocumentsContext, query: Tensor, key: Tensor, value: Tensor, options: DocumentOptions
    ) -> Tensor:
        """Compute each document into one output buffer, or all documents in one call if they are equally
        long.
        """
        result, sums = flash_forward(query, key, value, options)
        ctx.save_for_backward(query, key, value, result, *sums)
        ctx.options = options
        return result

    @staticmethod
    def backward(ctx: _DocumentsContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Call the kernel's own backward per document, or once for all if they are equally long."""
        query, key, value, out, *sums = ctx.saved_tensors
        return *flash_backward(grad, query, key, value, out, sums, ctx.options), None


def flash_forward(
    query: Tensor, key: Tensor, value: Tensor, options: DocumentOptions
) -> tuple[Tensor, list[Tensor]]:
    """Return the attention [1, H, T, D], laid out as [1, T, H, D], in the query's dtype, and the
    log-sum-exps: [1, H, t] of each document, or one [documents, H, t] if all are equally long.
    """
    bounds, scale, product, causal = options
    q, k, v = query.to(product), key.to(product), value.to(product)
    # Rows of one length are a batch: one call of the kernel, which then uses all cores.
    if rows := equal_rows(bounds, q.shape[2]):
        o, lse = _flash(*(_split(x, rows) for x in (q, k, v)), 0.0, causal, scale=scale)
        out, sums = _joined(o), [lse]
    else:
        out, sums = _each(q, k, v, bounds, scale, causal)
    return out.to(query.dtype), sums


def flash_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    sums: Sequence[Tensor],
    options: DocumentOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value from what ``flash_forward`` took and returned."""
    bounds, scale, product, causal = options
    all_of_them = tuple(x.to(product) for x in (grad, query, key, value, out))
    if rows := equal_rows(bounds, query.shape[2]):
        parts = (_split(x, rows) for x in all_of_them)
        grads = [_joined(x) for x in _flash_backward(*parts, sums[0], 0.0, causal, scale=scale)]
    else:
        # Empty, since the documents cover every token.
        grads = [torch.empty_like(x) for x in all_of_them[1:4]]
        for (start, end), lse in zip(pairwise(bounds), sums, strict=True):
            part = (x[:, :, start:end] for x in all_of_them)
            pieces = _flash_backward(*part, lse, 0.0, causal, scale=scale)
            for total, piece in zip(grads, pieces, strict=True):
                total[:, :, start:end] = piece
    return grads[0].to(query.dtype), grads[1].to(key.dtype), grads[2].to(value.dtype)


def _each(
    q: Tensor, k: Tensor, v: Tensor, bounds: tuple[int, ...], scale: float, causal: bool
) -> tuple[Tensor, list[Tensor]]:
    """Return the attention [1, H, T, D], laid out as [1, T, H, D], and the log-sum-exps [1, H, t] of each
    document.
    """
    _, heads, tokens, width = q.shape
    # Laid out as [1, T, H, D]: the output projection reads it without a copy.
    out = q.new_empty(1, tokens, heads, width).transpose(1, 2)
    sums = []
    for start, end in zip(bounds, bounds[1:], strict=False):
        o, lse = _flash(q[:, :, start:end], k[:, :, start:end], v[:, :, start:end], 0.0, causal, scale=scale)
        out[:, :, start:end] = o
        sums.append(lse)
    return out, sums


def equal_rows(bounds: tuple[int, ...], tokens: int) -> int:
    """Return the number of documents if there are several and all are equally long, else 0."""
    rows = len(bounds) - 1
    equal = rows > 1 and tokens % rows == 0 and bounds == tuple(range(0, tokens + 1, tokens // rows))
    return rows if equal and tokens else 0


def _split(x: Tensor, rows: int) -> Tensor:
    """[1, H, rows · t, D] -> [rows, H, t, D], a view."""
    heads, tokens = x.shape[1:3]
    return x.squeeze(0).view(heads, rows, tokens // rows, -1).transpose(0, 1)


def _joined(x: Tensor) -> Tensor:
    """[rows, H, t, D] -> [1, H, rows · t, D] laid out as [1, T, H, D]; a view of the kernel's output."""
    return x.transpose(1, 2).flatten(0, 1).unsqueeze(0).transpose(1, 2)


def documents_generic(
    query: Tensor, key: Tensor, value: Tensor, layout: PackedSequenceInfo, options: AttentionOptions
) -> Tensor:
    """Any variant, one document at a time.

    Shapes as in ``CpuDocuments``; value may have another head dim.
    """
    scale, dropout, window, softcap, sinks = options
    groups = query.shape[1] // key.shape[1]
    pieces = []
    for start, end in zip(layout.bounds, layout.bounds[1:], strict=False):
        q, k, v = (x[:, :, start:end] for x in (query, key, value))
        # A window as long as the document hides nothing.
        far = window is None or window >= end - start
        blocks = layout.blocks_of(start, end)
        far = far and not blocks
        mask = None if far else document_mask(end - start, window, layout.causal, q.device, blocks)
        if softcap is not None or sinks is not None:
            if mask is None and not layout.causal:
                mask = document_mask(end - start, None, False, q.device)
            pieces.append(scores_attention(q, k, v, mask, options))
            continue
        if groups > 1:
            k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        pieces.append(
            F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=far and layout.causal, dropout_p=dropout, scale=scale
            )
        )
    return torch.cat(pieces, dim=2)


def document_mask(
    length: int,
    window: int | None,
    causal: bool,
    device: torch.device,
    blocks: Sequence[tuple[int, int]] = (),
) -> Tensor:
    """Return bool [length, length]: True where the row's position may attend to the column's. Positions in
    one of ``blocks`` see each other, except those before their window.
    """
    mask = torch.ones(length, length, dtype=torch.bool, device=device)
    if causal or window is not None:
        # Without causality a window reaches ahead as well.
        mask.tril_(0 if causal or window is None else window - 1)
    for start, end in blocks:
        mask[start:end, start:end] = True
    return mask if window is None else mask.triu_(1 - window)


def scores_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, options: AttentionOptions
) -> Tensor:
    """Attention with explicit scores [B, H, Q, K] and softmax in fp32 (as Hugging Face's eager functions).

    ``mask`` is bool, or added to the scores, and holds the window too; None: causal, with aligned ends.
    """
    scale, dropout, _, softcap, sinks = options
    groups, last = q.shape[1] // k.shape[1], k.shape[2]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    if mask is None:
        # The queries are the last positions of a cache: the mask's last rows.
        mask = document_mask(last, None, True, q.device)[last - q.shape[2] :]
    scores = torch.matmul(q, k.transpose(2, 3)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    added = mask.is_floating_point()
    scores = scores + mask if added else scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    wide = torch.float32 if scores.dtype in (torch.bfloat16, torch.float16) else scores.dtype
    if sinks is not None:
        sink = sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1).to(scores.dtype)
        # One more column, which takes its share of the softmax and is then dropped.
        scores = torch.cat([scores, sink], dim=-1)
    weights = F.softmax(scores, dim=-1, dtype=wide)
    if sinks is not None:
        weights = weights[..., :-1]
    return torch.matmul(F.dropout(weights.to(q.dtype), p=dropout), v)


def documents_padded(
    query: Tensor, key: Tensor, value: Tensor, layout: PackedSequenceInfo, options: AttentionOptions
) -> Tensor:
    """One SDPA call on [D, heads, longest, width]: for accelerators, where one call per document would be
    bound by kernel launches.

    Padding is at the end of each row, so no real position of a causal model attends to it; an encoder's gets
    a mask. Shapes as in ``documents_generic``, but for scores that are capped. A sink becomes a key before
    the document that every query sees: its score is the sink, its value 0. Heads are padded with zeros to a
    multiple of 8, since kernels for other sizes store all scores.
    """
    scale, dropout, window, _, sinks = options
    rows, value_width = layout.padded, value.shape[-1]
    q, k, v = (rows.pad(x[0].transpose(0, 1)).transpose(1, 2) for x in (query, key, value))
    if sinks is not None:
        q, k, v = _before_all(q, k, v, sinks.float() / scale)
    # a pad of nothing would copy
    q, k, v = (F.pad(x, (0, short)) if (short := -x.shape[-1] % FLASH_MULTIPLE) else x for x in (q, k, v))
    mask = _mask_of_rows(layout, q.shape[2], window)
    if mask is not None and not layout.causal:
        # a padding's own row sees itself alone: a row without a key would be NaN
        itself = torch.eye(q.shape[2], dtype=torch.bool, device=query.device)
        mask = ((mask & rows.real[:, None, :]) | itself).unsqueeze(1)
    if mask is not None and sinks is not None:
        # the sink's key is in every window
        mask[..., 0] = True
    out = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        is_causal=mask is None,
        dropout_p=dropout,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    if sinks is not None:
        out = out[:, :, 1:]
    return rows.unpad(out[..., :value_width].transpose(1, 2)).transpose(0, 1).unsqueeze(0)


def _mask_of_rows(layout: PackedSequenceInfo, longest: int, window: int | None) -> Tensor | None:
    """Return bool [longest, longest], or with blocks [D, 1, longest, longest]; None: causal."""
    device = layout.cu_seqlens.device
    if layout.blocks:
        # a sink's key is before the document
        before = longest - layout.max_seqlen
        of_documents = [
            [(a + before, b + before) for a, b in layout.blocks_of(start, end)]
            for start, end in pairwise(layout.bounds)
        ]
        masks = [document_mask(longest, window, layout.causal, device, blocks) for blocks in of_documents]
        return torch.stack(masks).unsqueeze(1)
    if window is None and layout.causal:
        return None
    return document_mask(longest, window, layout.causal, device)


def _before_all(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Prepend a key whose product with every query is ``sinks`` [H], and a dummy query.

    Heads get a component that is 1 in queries and 0 in all keys but the new one. Each query head has its own
    sink, so shared key heads are repeated. Values are padded with zeros to the size of queries.
    """
    groups = q.shape[1] // k.shape[1]
    # A sink belongs to a query head, so key heads cannot stay shared.
    k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    # One more component, 1 in every query; and a dummy query before the document, dropped from the output.
    q = F.pad(F.pad(q, (0, 1), value=1.0), (0, 0, 1, 0))
    at_sink = F.pad(sinks.to(k.dtype)[:, None, None], (k.shape[-1], 0)).expand(k.shape[0], -1, -1, -1)
    return q, torch.cat([at_sink, F.pad(k, (0, 1))], dim=2), F.pad(v, (0, q.shape[-1] - v.shape[-1], 1, 0))
