"""Kernels that only a device's build of torch has, with real numbers, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from emulated_flex import OWN_FLEX
from emulated_tensor import DeviceTensor, rounded
from torch import Tensor

from paceline.models.triton_kernels import reference

FLASH_FROM = (8, 0)


def flash_varlen(
    query: DeviceTensor,
    key: DeviceTensor,
    value: DeviceTensor,
    cu_query: Tensor,
    cu_key: Tensor,
    longest_query: int,
    longest_key: int,
    is_causal: bool = False,
    scale: float | None = None,
    window: list[int] | None = None,
    *_: Any,
    **__: Any,
) -> tuple[Tensor, ...]:
    """``torch_attn::_varlen_attn``: [T, H, D] in, (out [T, H, D], log-sums [H, T], state). Sums are fp32;
    what goes into a product has the inputs' 16 bits, as the kernel's registers (flash-attention's
    ``convert_type<Element>`` of probabilities forward, of these and the scores' gradient backward).
    """
    machine = query.machine
    _accepts(query, key, value, cu_query, cu_key)
    out, sums = torch.empty_like(query.numbers), torch.empty(query.shape[1], query.shape[0])
    for rows, own, scores in _documents(query, key, cu_query, cu_key, is_causal, scale, window):
        _, _, v = _wide(query, key, value, rows, own)
        p = (scores - scores.amax(-1, keepdim=True)).exp()
        found = (rounded(p, query.dtype) @ v) / p.sum(-1, keepdim=True)
        out[rows] = found.transpose(0, 1).to(out.dtype)
        sums[:, rows] = scores.logsumexp(-1)
    return tuple(DeviceTensor(x, machine) for x in (out, sums, torch.zeros(2, dtype=torch.uint64)))


def flash_varlen_backward(
    grad: DeviceTensor,
    query: DeviceTensor,
    key: DeviceTensor,
    value: DeviceTensor,
    out: DeviceTensor,
    log_sums: DeviceTensor,
    cu_query: Tensor,
    cu_key: Tensor,
    longest_query: int,
    longest_key: int,
    is_causal: bool,
    state: Tensor,
    scale: float | None = None,
    window: list[int] | None = None,
) -> tuple[Tensor, ...]:
    """``torch_attn::_varlen_attn_backward``: the gradients of query, key and value, from the output and the
    log-sums that are given, as the kernel computes them.
    """
    _accepts(query, key, value, cu_query, cu_key)
    if grad.stride(-1) != 1:
        raise RuntimeError("dout tensor must have contiguous last dimension")
    if log_sums.dtype != torch.float32 or out.dtype != query.dtype:
        raise RuntimeError("the log-sums are fp32, the output has the query's dtype")
    grads = [torch.zeros_like(x.numbers) for x in (query, key, value)]
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    copies = query.shape[1] // key.shape[1]
    for rows, own, raw in _documents(query, key, cu_query, cu_key, is_causal, scale, window):
        q, k, v = _wide(query, key, value, rows, own)
        g, o = (x.numbers[rows].transpose(0, 1).float() for x in (grad, out))
        p = (raw - log_sums.numbers[:, rows, None]).exp()
        moved = rounded(p * (g @ v.mT - (g * o).sum(-1, keepdim=True)), query.dtype)
        p = rounded(p, query.dtype)
        found = (
            (moved @ k * factor, 1, rows),
            (moved.mT @ q * factor, copies, own),
            (p.mT @ g, copies, own),
        )
        for whole, (part, shared, place) in zip(grads, found, strict=True):
            summed = part.unflatten(0, (-1, shared)).sum(1)
            whole[place] = summed.transpose(0, 1).to(whole.dtype)
    return tuple(DeviceTensor(g, query.machine) for g in grads)


def _accepts(query: DeviceTensor, key: DeviceTensor, value: DeviceTensor, *bounds: Tensor) -> None:
    """What torch's flash_api.cpp (``mha_varlen_fwd``) checks."""
    if query.machine.kind != "cuda" or query.machine.capability < FLASH_FROM:
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")
    if query.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    if any(x.dtype != query.dtype for x in (key, value)):
        raise RuntimeError("query, key and value must have the same dtype")
    if any(x.stride(-1) != 1 for x in (query, key, value)):
        raise RuntimeError("Input tensor must have contiguous last dimension")
    for one in bounds:
        if not isinstance(one, DeviceTensor) or one.dtype != torch.int32 or not one.is_contiguous():
            raise RuntimeError("cu_seqlens must be int32, on the device and contiguous")
    if query.shape[-1] % 8 or query.shape[-1] > 256 or value.shape[-1] != query.shape[-1]:
        raise RuntimeError(
            "head_size must be a multiple of 8, at most 256, and equal for query, key and value"
        )
    if query.shape[1] % key.shape[1]:
        raise RuntimeError("Number of heads in key/value must divide number of heads in query")


def _wide(
    query: DeviceTensor, key: DeviceTensor, value: DeviceTensor, rows: slice, own: slice
) -> tuple[Tensor, ...]:
    """fp32 [H, t, D] of one document; heads that queries share are repeated."""
    copies = query.shape[1] // key.shape[1]
    q = query.numbers[rows].transpose(0, 1).float()
    k, v = (x.numbers[own].transpose(0, 1).float().repeat_interleave(copies, 0) for x in (key, value))
    return q, k, v


def _documents(
    query: DeviceTensor,
    key: DeviceTensor,
    cu_query: Tensor,
    cu_key: Tensor,
    is_causal: bool,
    scale: float | None,
    window: list[int] | None,
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield the rows of queries and of keys and the scores [H, t, s] of each document, -inf where a query
    does not see: the last query sees the last key.
    """
    assert isinstance(cu_query, DeviceTensor) and isinstance(cu_key, DeviceTensor)
    at, to = (x.numbers.tolist() for x in (cu_query, cu_key))
    left, right = window or (-1, -1)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    for start, end, first, last in zip(at, at[1:], to, to[1:], strict=False):
        rows, own = slice(start, end), slice(first, last)
        q, k, _ = _wide(query, key, key, rows, own)
        place = torch.arange(end - start) + (last - first) - (end - start)
        ahead = torch.arange(last - first)[None, :] - place[:, None]  # how far a key lies after the query
        seen = torch.ones_like(ahead, dtype=torch.bool)
        if is_causal or right >= 0:
            seen &= ahead <= max(right, 0)
        if left >= 0:
            seen &= -ahead <= left
        yield rows, own, (q @ k.mT * factor).masked_fill(~seen, float("-inf"))


def histogram(x: DeviceTensor, *args: Any, **kwargs: Any) -> Tensor:
    """``histc`` of whole numbers, which a CPU lacks (a mixture's tokens by expert)."""
    counts = torch.ops.aten.histc.default(x.numbers.float(), *args, **kwargs)
    return DeviceTensor(counts.to(x.dtype), x.machine)


def fused_rms_norm(
    x: DeviceTensor, shape: list[int], weight: DeviceTensor, eps: float | None
) -> tuple[Tensor, ...]:
    """``aten::_fused_rms_norm``: (y, 1/rms [.., 1] in fp32); weight and input share a dtype."""
    if weight.dtype != x.dtype:
        raise RuntimeError("expected weight and input of one dtype")  # else torch takes no fused kernel
    found, rstd = reference.rms_norm(x.numbers, weight.numbers, 0.0 if eps is None else eps, 0.0)
    return tuple(DeviceTensor(t, x.machine) for t in (found, rstd.view(*x.shape[:-1], 1)))


def fused_rms_norm_backward(
    grad: DeviceTensor,
    x: DeviceTensor,
    shape: list[int],
    rstd: DeviceTensor,
    weight: DeviceTensor,
    needed: list[bool],
) -> tuple[Tensor | None, ...]:
    """``aten::_fused_rms_norm_backward``: the gradients of x and weight."""
    given = (t.numbers for t in (grad, x, weight))
    found = reference.rms_norm_backward(*given, rstd.numbers.flatten(), 0.0, 1)
    grads = found[0], found[1].sum(0).to(weight.dtype)
    return tuple(DeviceTensor(t, x.machine) if n else None for t, n in zip(grads, needed, strict=True))


def product_of(out_dtype: torch.dtype, *operands: Tensor) -> Tensor:
    """A product of 16-bit matrices that is summed and kept in fp32, as CUDA's ``mm`` with ``out_dtype``."""
    if any(x.dtype not in (torch.bfloat16, torch.float16) for x in operands):
        raise RuntimeError("out_dtype: operands must be bf16 or fp16")
    if out_dtype != torch.float32:
        raise RuntimeError("out_dtype must be fp32")
    a, b = (x.numbers.to(out_dtype) for x in operands)  # type: ignore[attr-defined]
    return a @ b


def wide_product(a: DeviceTensor, b: DeviceTensor, out_dtype: torch.dtype) -> Tensor:
    """``aten::mm.dtype``."""
    return DeviceTensor(product_of(out_dtype, a, b), a.machine)


def wide_product_out(
    a: DeviceTensor, b: DeviceTensor, out_dtype: torch.dtype, *, out: DeviceTensor
) -> Tensor:
    """``aten::mm.dtype_out``."""
    out.numbers.copy_(product_of(out_dtype, a, b))
    return out


def wide_sum_(
    c: DeviceTensor,
    a: DeviceTensor,
    b: DeviceTensor,
    out_dtype: torch.dtype,
    *,
    beta: float = 1,
    out: DeviceTensor,
) -> Tensor:
    """``aten::addmm.dtype_out``: out = beta · c + a @ b."""
    assert out.dtype == c.dtype == out_dtype
    found = product_of(out_dtype, a, b)
    out.numbers.copy_(found if beta == 0 else found + beta * c.numbers)
    return out


OWN = {
    "aten::mm.dtype": wide_product,
    "aten::mm.dtype_out": wide_product_out,
    "aten::addmm.dtype_out": wide_sum_,
    "aten::_fused_rms_norm": fused_rms_norm,
    "aten::_fused_rms_norm_backward": fused_rms_norm_backward,
    "aten::histc": histogram,
    "torch_attn::_varlen_attn": flash_varlen,
    "torch_attn::_varlen_attn_backward": flash_varlen_backward,
    **OWN_FLEX,
}
