"""One call of attention under a mask as accelerators' fused kernels compute it in 16 bits. Without such a
kernel torch would compute all of it in fp32, which no card does.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from emulated_tensor import DeviceTensor, rounded
from torch import Tensor

_PLAIN = F.scaled_dot_product_attention


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``F.scaled_dot_product_attention``: [B, H, T, D].

    Without gradients it is torch's own, whose operations graphs of decoding record.
    """
    low = isinstance(query, DeviceTensor) and query.dtype in (torch.float16, torch.bfloat16)
    fused = low and torch.is_grad_enabled()
    boolean = attn_mask is None or attn_mask.dtype == torch.bool
    if not fused or not boolean or dropout_p:
        return _PLAIN(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    with torch.autocast("cpu", enabled=False):
        out: Tensor = _Fused.apply(query, key, value, attn_mask, is_causal, factor)
    return out


class _Fused(torch.autograd.Function):
    """Sums are fp32; what goes into a product has the inputs' 16 bits, as in ``emulated_kernels``."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any, causal: bool, scale: float) -> Tensor:
        query.machine.kernels["_scaled_dot_product_efficient_attention"] += 1
        q, k, v = _wide(query, key, value)
        seen = _seen(q, k, mask, causal)
        scores = (q @ k.mT * scale).masked_fill(~seen, float("-inf"))
        largest = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)
        p = (scores - largest).exp()
        sums = p.sum(-1, keepdim=True)  # 0 where a query sees no key, and the output is 0 there
        found = (rounded(p, query.dtype) @ v / sums.masked_fill(sums == 0, 1)).to(query.dtype)
        out = DeviceTensor(found, query.machine)
        ctx.save_for_backward(query, key, value, out)
        ctx.seen, ctx.scale = seen, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        query, key, value, out = ctx.saved_tensors
        assert not torch.is_autocast_enabled("cpu")
        grad.machine.kernels["_scaled_dot_product_efficient_attention_backward"] += 1
        q, k, v = _wide(query, key, value)
        g, o = (x.numbers.float() for x in (grad, out))
        scores = (q @ k.mT * ctx.scale).masked_fill(~ctx.seen, float("-inf"))
        p = scores.softmax(-1).nan_to_num(0.0)
        moved = rounded(p * (g @ v.mT - (g * o).sum(-1, keepdim=True)), query.dtype)
        p = rounded(p, query.dtype)
        grads = (moved @ k * ctx.scale, moved.mT @ q * ctx.scale, p.mT @ g)
        made = [
            DeviceTensor(x.unflatten(1, (own.shape[1], -1)).sum(2).to(own.dtype), own.machine)
            for x, own in zip(grads, (query, key, value), strict=True)
        ]
        return *made, None, None, None


def _wide(query: Any, key: Any, value: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The numbers in fp32, a key and a value for every query head."""
    copies = query.shape[1] // key.shape[1]
    k, v = (x.numbers.float().repeat_interleave(copies, 1) for x in (key, value))
    return query.numbers.float(), k, v


def _seen(q: Tensor, k: Tensor, mask: Any, causal: bool) -> Tensor:
    """Which keys a query sees."""
    if mask is not None:
        found: Tensor = mask.numbers if isinstance(mask, DeviceTensor) else mask
        return found
    square = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
    return square.tril() if causal else square
