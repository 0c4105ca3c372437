"""``flex_attention`` as the compiled kernel computes it: one operator forward, two backward, real numbers.
What it skips it skips by its tables of blocks, so a wrong table gives wrong numbers. Sums are fp32, operands
of products have the inputs' dtype (``MATMUL_PRECISION`` in torch's templates).
"""

from __future__ import annotations

from typing import Any

import torch
from emulated_tensor import DeviceTensor, rounded
from torch import Tensor

BLOCK = 128
FLEX_FROM, SMALLEST = (7, 5), 16  # Triton's oldest card; its smallest product


@torch.library.custom_op("emulated::flex", mutates_args=())
def flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    first: Tensor,
    last: Tensor,
    blocks: list[Tensor],
    scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """query [1, H, T, D], key [1, K, S, D], value [1, K, S, E] -> [1, H, T, E], fp32 log-sums [1, H, T]."""
    raise NotImplementedError("the device computes it")


@torch.library.custom_op("emulated::flex_backward", mutates_args=())
def flex_backward(
    grad: Tensor,
    of_sums: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    sums: Tensor,
    first: Tensor,
    last: Tensor,
    blocks: list[Tensor],
    scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value; ``of_sums`` [1, H, T] is ``flex_delta``'s."""
    raise NotImplementedError("the device computes it")


@torch.library.custom_op("emulated::flex_delta", mutates_args=())
def flex_delta(grad: Tensor, out: Tensor, of_sums: Tensor | None) -> Tensor:
    """Rows' sums of gradient · output, less the log-sums' gradient, fp32 [1, H, T]."""
    raise NotImplementedError("the device computes it")


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, first, last, ctx.blocks, ctx.scale, ctx.softcap = inputs
    ctx.save_for_backward(query, key, value, *output, first, last)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: Tensor, of_sums: Tensor | None) -> tuple[Any, ...]:
    query, key, value, out, sums, first, last = ctx.saved_tensors
    delta = flex_delta(grad, out, of_sums)
    grads = flex_backward(
        grad, delta, query, key, value, out, sums, first, last, ctx.blocks, ctx.scale, ctx.softcap
    )
    return *grads, None, None, [None] * len(ctx.blocks), None, None


flex.register_autograd(_gradients, setup_context=_keep)


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
    """In place of ``models.flex.flex_call``."""
    out, sums = flex(query, key, value, first, last, list(blocks), scale, softcap)
    return out, sums if want_sums else None


def _computed(
    query: DeviceTensor,
    key: DeviceTensor,
    value: DeviceTensor,
    first: DeviceTensor,
    last: DeviceTensor,
    blocks: list[DeviceTensor],
    scale: float,
    softcap: float | None,
) -> tuple[DeviceTensor, DeviceTensor]:
    _accepts(query, key, value, first, last, *blocks)
    q, k, v = _wide(query, key, value)
    capped, _ = _scores(q, k, seen(query, key, first, last, blocks[:4], False), scale, softcap)
    p = (capped - capped.amax(-1, keepdim=True)).exp()
    out = (rounded(p, query.dtype) @ v / p.sum(-1, keepdim=True)).to(query.dtype)
    return DeviceTensor(out, query.machine), DeviceTensor(capped.logsumexp(-1), query.machine)


def _delta(grad: DeviceTensor, out: DeviceTensor, of_sums: DeviceTensor | None) -> DeviceTensor:
    found = (grad.numbers.float() * out.numbers.float()).sum(-1)
    return DeviceTensor(found if of_sums is None else found - of_sums.numbers, grad.machine)


def _computed_backward(
    grad: DeviceTensor,
    of_sums: DeviceTensor,
    query: DeviceTensor,
    key: DeviceTensor,
    value: DeviceTensor,
    out: DeviceTensor,
    sums: DeviceTensor,
    first: DeviceTensor,
    last: DeviceTensor,
    blocks: list[DeviceTensor],
    scale: float,
    softcap: float | None,
) -> tuple[DeviceTensor, ...]:
    _accepts(query, key, value, first, last, *blocks)
    q, k, v = _wide(query, key, value)
    g, copies = grad.numbers.float(), query.shape[1] // key.shape[1]
    made = []
    for part, by_keys in (
        (blocks[:4], False),
        (blocks[4:], True),
    ):  # queries by rows, keys and values by columns
        capped, slope = _scores(q, k, seen(query, key, first, last, part, by_keys), scale, softcap)
        p = (capped - sums.numbers.unsqueeze(-1)).exp()
        moved = p * (g @ v.mT - of_sums.numbers.unsqueeze(-1)) * slope
        made.append((rounded(p, query.dtype), rounded(moved, query.dtype)))
    (_, by_row), (p, by_column) = made
    found = ((by_row @ k * scale, 1), (by_column.mT @ q * scale, copies), (p.mT @ g, copies))
    return tuple(
        DeviceTensor(x.unflatten(1, (-1, shared)).sum(2).to(query.dtype), query.machine)
        for x, shared in found
    )


def _accepts(query: DeviceTensor, key: DeviceTensor, value: DeviceTensor, *tables: Tensor) -> None:
    """What torch's lowering and Triton check."""
    if query.machine.kind != "cuda" or query.machine.capability < FLEX_FROM:
        raise RuntimeError("Triton has no such kernel for this device")
    if any(x.dtype != query.dtype for x in (key, value)):
        raise ValueError("query, key and value must have the same dtype")
    if min(query.shape[-1], value.shape[-1]) < SMALLEST:
        raise NotImplementedError("NYI: embedding dimension must be at least 16")
    for table in tables:
        if not isinstance(table, DeviceTensor) or table.dtype != torch.int32:
            raise RuntimeError("the mask's tables must be int32, on the device")


def _wide(query: DeviceTensor, key: DeviceTensor, value: DeviceTensor) -> tuple[Tensor, ...]:
    copies = query.shape[1] // key.shape[1]
    k, v = (x.numbers.float().repeat_interleave(copies, 1) for x in (key, value))
    return query.numbers.float(), k, v


def _scores(
    q: Tensor, k: Tensor, visible: Tensor, scale: float, softcap: float | None
) -> tuple[Tensor, Tensor | float]:
    """The scores, -inf where not seen, and the slope of the cap."""
    scores, slope = q @ k.mT * scale, 1.0
    if softcap is not None:
        scores = torch.tanh(scores / softcap)
        slope, scores = 1 - scores * scores, scores * softcap  # type: ignore[assignment]
    return scores.masked_fill(~visible, float("-inf")), slope


def seen(
    query: Tensor,
    key: Tensor,
    first: DeviceTensor,
    last: DeviceTensor,
    blocks: list[DeviceTensor],
    by_keys: bool,
) -> Tensor:
    """bool [T, S]: what the kernel computes of the scores; the mask's function in blocks that need it, all of
    the others, nothing elsewhere. ``by_keys``: the tables are by block of keys, as for gradients of keys.
    """
    queries, keys = query.shape[2], key.shape[2]
    part, whole = (_table(*blocks[i : i + 2]) for i in (0, 2))
    part, whole = ((x.mT if by_keys else x)[:queries, :keys] for x in (part, whole))
    to = torch.arange(keys)[None, :]
    asked = (to >= first.numbers[:, None]) & (to <= last.numbers[:, None])
    return (part & asked) | whole


def _table(counts: DeviceTensor, places: DeviceTensor) -> Tensor:
    """bool [rows · 128, columns · 128] of one pair of tables."""
    number, where = counts.numbers[0, 0], places.numbers[0, 0]
    found = torch.zeros_like(where, dtype=torch.bool)
    for row, count in enumerate(number.tolist()):
        found[row, where[row, :count].long()] = True
    return found.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)


OWN_FLEX = {
    "emulated::flex": _computed,
    "emulated::flex_backward": _computed_backward,
    "emulated::flex_delta": _delta,
}
