"""Kernels that only a device's build of torch has, with real numbers, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from emulated_tensor import DeviceTensor
from torch import Tensor

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
    """``torch_attn::_varlen_attn``: [T, H, D] in, (out [T, H, D], log-sums [H, T], state)."""
    machine = query.machine
    _accepts(query, key, value, cu_query, cu_key)
    out, sums = torch.empty_like(query.numbers), torch.empty(query.shape[1], query.shape[0])
    for rows, probabilities, log_sum in _documents(query, key, cu_query, is_causal, scale, window):
        _, _, v = _wide(query, key, value, rows)
        out[rows] = (probabilities @ v).transpose(0, 1).to(out.dtype)
        sums[:, rows] = log_sum
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
    """``torch_attn::_varlen_attn_backward``: the gradients of query, key and value."""
    _accepts(query, key, value, cu_query, cu_key)
    if grad.stride(-1) != 1:
        raise RuntimeError("dout tensor must have contiguous last dimension")
    grads = [torch.empty_like(x.numbers) for x in (query, key, value)]
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    copies = query.shape[1] // key.shape[1]
    for rows, p, _ in _documents(query, key, cu_query, is_causal, scale, window):
        q, k, v = _wide(query, key, value, rows)
        g = grad.numbers[rows].transpose(0, 1).float()
        inner = g @ v.mT
        scores = p * (inner - (inner * p).sum(-1, keepdim=True)) * factor
        found = (scores @ k, scores.mT @ q, p.mT @ g)
        for whole, part, shared in zip(grads, found, (1, copies, copies), strict=True):
            summed = part.unflatten(0, (-1, shared)).sum(1)
            whole[rows] = summed.transpose(0, 1).to(whole.dtype)
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


def _wide(query: DeviceTensor, key: DeviceTensor, value: DeviceTensor, rows: slice) -> tuple[Tensor, ...]:
    """fp32 [H, t, D] of one document; heads that queries share are repeated."""
    copies = query.shape[1] // key.shape[1]
    q, k, v = (x.numbers[rows].transpose(0, 1).float() for x in (query, key, value))
    return q, k.repeat_interleave(copies, 0), v.repeat_interleave(copies, 0)


def _documents(
    query: DeviceTensor,
    key: DeviceTensor,
    cu_seqlens: Tensor,
    is_causal: bool,
    scale: float | None,
    window: list[int] | None,
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield the rows, probabilities [H, t, t] and log-sums [H, t] of each document."""
    assert isinstance(cu_seqlens, DeviceTensor)
    bounds = cu_seqlens.numbers.tolist()
    left, right = window or (-1, -1)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    for start, end in zip(bounds, bounds[1:], strict=False):
        q, k, _ = _wide(query, key, key, slice(start, end))
        place = torch.arange(end - start)
        ahead = place[None, :] - place[:, None]  # how far a key lies after the query
        seen = torch.ones_like(ahead, dtype=torch.bool)
        if is_causal or right >= 0:
            seen &= ahead <= max(right, 0)
        if left >= 0:
            seen &= -ahead <= left
        scores = (q @ k.mT * factor).masked_fill(~seen, float("-inf"))
        yield slice(start, end), scores.softmax(-1), scores.logsumexp(-1)


def histogram(x: DeviceTensor, *args: Any, **kwargs: Any) -> Tensor:
    """``histc`` of whole numbers, which a CPU lacks (a mixture's tokens by expert)."""
    counts = torch.ops.aten.histc.default(x.numbers.float(), *args, **kwargs)
    return DeviceTensor(counts.to(x.dtype), x.machine)


OWN = {
    "aten::histc": histogram,
    "torch_attn::_varlen_attn": flash_varlen,
    "torch_attn::_varlen_attn_backward": flash_varlen_backward,
}
