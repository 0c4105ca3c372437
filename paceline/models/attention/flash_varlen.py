"""torch's variable-length flash attention (CUDA, bf16 and fp16): all documents of a row in one call, windows
and sinks included.

A sink is one more logit of a row's softmax, without a value. The kernel does not know the sink, but gives
each row's log-sum-exp, by which the output is scaled afterwards. The kernel's backward gets the scaled output
and the log-sum-exp with the sink in it. So it computes the gradients of the whole softmax: its probabilities
are exp(score - log-sum-exp), and it subtracts from each the row's sum of gradient · output.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.models.attention.reference_attention import AttentionOptions
from paceline.models.attention.sequence_info import PackedSequenceInfo
from paceline.models.typed_autograd import Function, FunctionContext
from paceline.plan.model.kernels import flash_width


def documents_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: PackedSequenceInfo,
    options: AttentionOptions,
) -> Tensor:
    """Attention per document: query [1, H, T, D], key [1, K, S, D] and value [1, K, S, E] -> [1, H, T, E].

    S is T unless ``layout.keys`` is set: then a document's queries are its last tokens. The kernel takes
    heads of one size, a multiple of 8: other sizes are padded with zeros. It has neither dropout nor capped
    scores.
    """
    from torch.nn.attention.varlen import varlen_attn

    scale, _, window, _, sinks = options
    value_width = value.shape[-1]
    width = flash_width(query.shape[-1], value_width)
    # [1, H, T, D] -> [T, H, D], the kernel's layout.
    q, k, v = (_widened(x, width)[0].transpose(0, 1) for x in (query, key, value))
    if sinks is not None:
        out = FlashWithSinks.apply(q, k, v, sinks, layout, scale, _window(window, causal=True))
    else:
        keys = layout.keys or layout
        attended = varlen_attn(
            q,
            k,
            v,
            layout.cu_seqlens,
            keys.cu_seqlens,
            layout.max_seqlen,
            keys.max_seqlen,
            scale=scale,
            window_size=_window(window, layout.causal),
            enable_gqa=q.shape[1] != k.shape[1],
        )
        assert isinstance(attended, Tensor)
        out = attended
    return out[..., :value_width].transpose(0, 1).unsqueeze(0)


def _window(window: int | None, causal: bool) -> tuple[int, int]:
    """Return the numbers of keys before and after its own position that a query sees; -1: all."""
    # A window counts the query's own key.
    side = -1 if window is None else window - 1
    return (side, 0 if causal else side)


def _widened(x: Tensor, width: int) -> Tensor:
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))


class _SinksContext(FunctionContext):
    saved_tensors: tuple[Tensor, ...]
    layout: PackedSequenceInfo
    scale: float
    window: tuple[int, int]


class FlashWithSinks(Function):
    """``varlen_attn`` of q [T, H, D], k and v [S, K, D] with one sink a head, ``sinks`` [H]."""

    @staticmethod
    def forward(
        ctx: _SinksContext,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor,
        layout: PackedSequenceInfo,
        scale: float,
        window: tuple[int, int],
    ) -> Tensor:
        """Return the output [T, H, D], each row scaled by the part of its softmax that is not the sink's."""
        keys = layout.keys or layout
        out, sums, state = torch.ops.torch_attn._varlen_attn(
            q,
            k,
            v,
            layout.cu_seqlens,
            keys.cu_seqlens,
            layout.max_seqlen,
            keys.max_seqlen,
            window[0] < 0,
            scale,
            list(window),
            q.shape[1] != k.shape[1],
        )
        # [H, T]: log(Σ exp(score) + exp(sink)).
        total = torch.logaddexp(sums, sinks.detach().float()[:, None])
        # The share of the softmax that is not the sink's, [T, H, 1].
        out = (out * (sums - total).exp().t().unsqueeze(-1)).to(q.dtype)
        ctx.save_for_backward(q, k, v, sinks, out, total, state)
        ctx.layout, ctx.scale, ctx.window = layout, scale, window
        return out

    @staticmethod
    def backward(ctx: _SinksContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Run the kernel's backward with the scaled output and the whole log-sum-exps."""
        q, k, v, sinks, out, total, state = ctx.saved_tensors
        layout = ctx.layout
        keys = layout.keys or layout
        # The kernel reads heads as contiguous rows.
        grad = grad if grad.stride(-1) == 1 else grad.contiguous()
        grads = torch.ops.torch_attn._varlen_attn_backward(
            grad,
            q,
            k,
            v,
            out,
            total,
            layout.cu_seqlens,
            keys.cu_seqlens,
            layout.max_seqlen,
            keys.max_seqlen,
            ctx.window[0] < 0,
            state,
            ctx.scale,
            list(ctx.window),
        )
        # the sink's probability times the gradient of its logit: nothing for its value, less the row's mean
        moved = torch.linalg.vecdot(grad.float(), out.float()).t()
        of_sinks = -((sinks.detach().float()[:, None] - total).exp() * moved).sum(1)
        return *grads, of_sinks.to(sinks.dtype), None, None, None
