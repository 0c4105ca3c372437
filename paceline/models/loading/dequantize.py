"""Dequantize stored weights: one formula per storage format.

Each takes the stored tensors of one weight by the ends of their names and returns float32 in the layout of
Transformers' class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from paceline.core.json_types import Json
from paceline.plan.model.quantized_weights import AWQ, COMPRESSED, FBGEMM, FP8, GPTQ, MXFP4

AT_ONCE = 256  # inputs or outputs of a weight that are made plain at once

Parts = Mapping[str, Tensor]
Settings = Mapping[str, Json]

#: The sixteen numbers of FP4 E2M1 (OCP Microscaling Formats 1.0, section 5.3.3), by their four bits.
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
#: The place in eight outputs of each nibble of an AWQ word, lowest first (AutoAWQ's GEMM layout).
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def by_blocks(weight: Tensor, scale: Tensor, block: tuple[int, int] | None) -> Tensor:
    """Return ``weight`` [..., out, in] times the scale of its block: ``scale`` is one number, one a row
    [..., out, 1], or one a block of ``block`` (rows, columns; the last ones may be cut).
    """
    wide, factor = weight.to(torch.float32, copy=True), _scales(scale)
    if factor.numel() == 1:
        return wide.mul_(factor.reshape(()))
    if factor.ndim < 2:
        factor = factor.reshape(-1, 1)
    for dim in (-2, -1):
        have, need = factor.shape[dim], weight.shape[dim]
        if have in (1, need):
            continue
        size = block[dim] if block is not None else -(-need // have)
        if -(-need // size) != have:
            raise ValueError(f"scales {list(scale.shape)} do not fit a weight {list(weight.shape)}")
        factor = factor.repeat_interleave(size, dim).narrow(dim, 0, need)
    return wide.mul_(factor)


def _scales(scale: Tensor) -> Tensor:
    """Return scales in float32; bytes are powers of two (E8M0, bias 127)."""
    wide = scale.to(torch.float32)
    return torch.exp2(wide - 127) if scale.dtype == torch.uint8 else wide


def fp8(parts: Parts, settings: Settings) -> Tensor:
    """Block-wise (DeepSeek-V3), row-wise or whole: weight times scale."""
    sizes = settings.get("weight_block_size")
    block = (int(str(sizes[0])), int(str(sizes[1]))) if isinstance(sizes, (list, tuple)) else None
    return by_blocks(parts["weight"], parts["scale"], block)


def mxfp4(parts: Parts, settings: Settings) -> Tensor:
    """gpt-oss: two numbers a byte, the lower four bits first; a power of two for each 32.

    blocks: uint8 [experts, out, in / 32, 16], scales: uint8 [experts, out, in / 32]; returns
    [experts, in, out].
    """
    table = torch.tensor([*_E2M1, *(-x for x in _E2M1)])
    experts, out, groups, half = parts["blocks"].shape
    plain = torch.empty(experts, 2 * half * groups, out)
    for expert, blocks, scales in zip(plain, parts["blocks"], parts["scales"], strict=True):
        pairs = torch.stack((blocks & 15, blocks >> 4), dim=-1)  # [out, in / 32, 16, 2]
        numbers = table.index_select(0, pairs.flatten().to(torch.int32)).view(out, groups, -1)
        expert.copy_(numbers.mul_(_scales(scales)[..., None]).flatten(1).t())
    return plain


def unpacked(words: Tensor, bits: int, dim: int) -> Tensor:
    """Return the unsigned numbers of ``bits`` bits in 32-bit words along ``dim``, lowest bits first."""
    words = words.movedim(dim, -1)
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    numbers = (words[..., None] >> shifts) & ((1 << bits) - 1)
    return numbers.flatten(-2).movedim(-1, dim)


def gptq(parts: Parts, settings: Settings) -> Tensor:
    """scale · (q − zero) (Frantar et al. 2022, arXiv:2210.17323).

    qweight: int32 [in · bits / 32, out], qzeros: int32 [groups, out · bits / 32], scales: [groups, out],
    g_idx: each input's group [in]. Format ``gptq`` stores each zero less one. Returns [out, in].
    """
    bits, words = int(str(settings["bits"])), parts["qweight"]
    zeros = unpacked(parts["qzeros"], bits, 1) + (settings.get("checkpoint_format") != "gptq_v2")

    def numbers(first: int, end: int) -> Tensor:
        return unpacked(words[first * bits // 32 : end * bits // 32], bits, 0)

    return _by_inputs(numbers, zeros, parts, len(words) * 32 // bits)


def awq(parts: Parts, settings: Settings) -> Tensor:
    """scale · (q − zero) (Lin et al. 2023, arXiv:2306.00978), AutoAWQ's GEMM layout.

    qweight: int32 [in, out / 8], qzeros: int32 [groups, out / 8], scales: [groups, out]. Returns [out, in].
    """

    def numbers(first: int, end: int) -> Tensor:
        return _in_order(unpacked(parts["qweight"][first:end], 4, 1))

    return _by_inputs(numbers, _in_order(unpacked(parts["qzeros"], 4, 1)), parts, len(parts["qweight"]))


def _by_inputs(numbers: Callable[[int, int], Tensor], zeros: Tensor, parts: Parts, num_inputs: int) -> Tensor:
    """Return scale · (q − zero) [out, in], ``numbers(first, end)`` being q [inputs, out] of some inputs.

    Computes a few inputs at a time, since each step would otherwise need another float32 copy of the weight.
    """
    scales = parts["scales"].to(torch.float32)
    group = parts["g_idx"].long() if "g_idx" in parts else _groups(num_inputs, len(scales))
    if len(group) != num_inputs:
        raise ValueError(f"groups of {len(group)} inputs do not fit a weight of {num_inputs}")
    plain = torch.empty(scales.shape[1], num_inputs)
    for first in range(0, num_inputs, AT_ONCE):
        end = min(first + AT_ONCE, num_inputs)
        of = group[first:end]
        plain[:, first:end] = ((numbers(first, end) - zeros[of]) * scales[of]).t()
    return plain


def _in_order(numbers: Tensor) -> Tensor:
    eights = numbers.reshape(len(numbers), -1, 8)
    ordered = torch.empty_like(eights)
    ordered[..., list(_AWQ_ORDER)] = eights
    return ordered.flatten(1)


def _groups(rows: int, groups: int) -> Tensor:
    """Return the group of each of ``rows`` inputs, in equal groups."""
    return torch.arange(rows) // -(-rows // groups)


def compressed(parts: Parts, settings: Settings) -> Tensor:
    """compressed-tensors: 8-bit floating point or integers, or integers packed into 32-bit words (stored plus
    half their range), with a scale for the whole, a row, a group of a row or a block.
    """
    stored = parts["weight" if "weight" in parts else "packed"]
    rows = len(stored) if "weight" in parts else int(parts["shape"][0])
    if len(stored) != rows:
        raise ValueError(f"{len(stored)} rows of words do not fit a weight of {rows} rows")
    scale_rows = len(parts["scale"]) if parts["scale"].ndim else 1
    each = 1 if scale_rows in (1, rows) else _block_of(settings, 0)
    if stored.ndim != 2 or not each or (each > 1 and "packed" in parts and "zero_point" in parts):
        return _compressed(parts, settings)
    bits = int(str(settings.get("num_bits", 8)))
    plain = torch.empty(rows, int(parts["shape"][1]) if "packed" in parts else stored.shape[1])
    for first in range(0, rows, step := -(-AT_ONCE // each) * each):
        end = min(first + step, rows)
        plain[first:end] = _compressed(_of_rows(parts, first, end, bits, rows, each), settings)
    return plain


def _block_of(settings: Settings, dim: int) -> int:
    """Return how many rows or columns share a scale; 0 if the settings do not say."""
    sizes = settings.get("block_structure")
    return int(str(sizes[dim])) if isinstance(sizes, (list, tuple)) else 0


def _of_rows(parts: Parts, first: int, end: int, bits: int, rows: int, each: int) -> Parts:
    """Return the parts of outputs ``first`` to ``end`` of a weight; ``each`` outputs share a row of
    scales."""
    cut = dict(parts)
    for name in parts.keys() & {"weight", "packed", "scale", "zero_point"}:
        part = parts[name]
        if name == "zero_point" and part.dtype == torch.int32 and "packed" in parts:
            cut[name] = part[first * bits // 32 : -(-end * bits // 32)]
        elif part.ndim and len(part) == rows:
            cut[name] = part[first:end]
        elif part.ndim and len(part) > 1:
            cut[name] = part[first // each : -(-end // each)]
    if "packed" in parts:
        cut["shape"] = torch.tensor([end - first, parts["shape"][1]])
    return cut


def _compressed(parts: Parts, settings: Settings) -> Tensor:
    weight, zero = parts.get("weight"), parts.get("zero_point")
    bits = int(str(settings.get("num_bits", 8)))
    if weight is None:
        half, (rows, columns) = 1 << (bits - 1), parts["shape"].tolist()
        weight = unpacked(parts["packed"], bits, 1)[:, :columns] - half
        if zero is not None and zero.dtype == torch.int32:
            zero = unpacked(zero, bits, 0)[:rows] - half
    scale = parts["scale"].to(torch.float32)
    if "g_idx" in parts:  # groups of inputs in another order
        group = parts["g_idx"].long()
        scale, zero = scale[:, group], None if zero is None else zero[:, group]
    block = (_block_of(settings, 0), _block_of(settings, 1)) if _block_of(settings, 0) else None
    plain = by_blocks(weight, scale, block)
    if zero is None:
        return plain
    return plain - by_blocks(torch.ones(weight.shape), zero.to(torch.float32) * scale, block)


def plain_shape(shapes: Mapping[str, tuple[int, ...]], settings: Settings) -> tuple[int, ...]:
    """Return the shape of the plain weight whose parts have these ``shapes`` (``compressed`` words store
    theirs).
    """
    if "weight" in shapes:
        return shapes["weight"]
    if "blocks" in shapes:
        experts, out, blocks, half = shapes["blocks"]
        return experts, 2 * half * blocks, out
    rows, columns = shapes["qweight"]
    if settings["quant_method"] == AWQ:
        return 8 * columns, rows
    return columns, rows * 32 // int(str(settings["bits"]))


#: ``plan.model.quantized_weights`` refuses other methods
FORMULAS: dict[str, Callable[[Parts, Settings], Tensor]] = {
    FP8: fp8,
    FBGEMM: fp8,
    MXFP4: mxfp4,
    GPTQ: gptq,
    AWQ: awq,
    COMPRESSED: compressed,
}
