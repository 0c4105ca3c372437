"""Launch the kernels on a device: how many programs, and blocks of which size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

TILE = 4096  # elements that one program holds at a time, where rows are short
BLOCK = 1024  # elements of a program of elementwise work
HEADS = 8  # of one token, at a time
COLUMNS = 4096  # logits of a row, at a time
WIDEST = 16384  # a row of a norm must fit a program's registers


@dataclass(frozen=True)
class Blocks:
    """Rows of a tile and their padded width, both powers of two, and warps."""

    rows: int
    width: int
    warps: int


def norm_blocks(width: int) -> Blocks:
    """Return the tile for rows of ``width`` elements: one row, or several short ones."""
    padded = power_of_two(width)
    rows = max(1, TILE // 2 // padded)
    return Blocks(rows, padded, min(16, max(4, rows * padded // 512)))


def norm_programs(rows: int, width: int, processors: int) -> int:
    """Return the number of programs over which the backward of a norm sums its weight's gradient."""
    # Two programs a processor keep it busy; each more would add a row to sum at the end.
    return max(1, min(-(-rows // norm_blocks(width).rows), 2 * processors))


def power_of_two(size: int) -> int:
    """Return the smallest power of two that is at least ``size``."""
    return 1 << max(0, size - 1).bit_length()


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float) -> tuple[Tensor, Tensor]:
    """See ``reference.rms_norm``."""
    from paceline.models.triton_kernels import kernels

    x = x.contiguous()
    width = x.shape[-1]
    rows, blocks = x.numel() // width, norm_blocks(width)
    y, rstd = torch.empty_like(x), x.new_empty(rows, dtype=torch.float32)
    kernels.rms_norm[(-(-rows // blocks.rows),)](
        x, weight, y, rstd, rows, width, eps, offset,
        ROWS=blocks.rows, WIDTH=blocks.width, num_warps=blocks.warps,
    )  # fmt: skip
    return y, rstd


def rms_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, offset: float, programs: int
) -> tuple[Tensor, Tensor]:
    """See ``reference.rms_norm_backward``."""
    from paceline.models.triton_kernels import kernels

    grad, x = grad.contiguous(), x.contiguous()
    width = x.shape[-1]
    rows, blocks = x.numel() // width, norm_blocks(width)
    grad_x, partial = torch.empty_like(x), rstd.new_empty(programs, width)
    kernels.rms_norm_backward[(programs,)](
        grad, x, weight, rstd, grad_x, partial, rows, width, offset,
        ROWS=blocks.rows, WIDTH=blocks.width, num_warps=blocks.warps,
    )  # fmt: skip
    return grad_x, partial


def gated(gate: Tensor, up: Tensor, tanh: bool) -> Tensor:
    """See ``reference.gated``."""
    from paceline.models.triton_kernels import kernels

    gate, up = gate.contiguous(), up.contiguous()
    acted, size = torch.empty_like(gate), gate.numel()
    kernels.gated[(-(-size // BLOCK),)](gate, up, acted, size, TANH=tanh, BLOCK=BLOCK)
    return acted


def gated_backward(gate: Tensor, up: Tensor, grad: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """See ``reference.gated_backward``. ``grad`` must be contiguous, as it is written to."""
    from paceline.models.triton_kernels import kernels

    assert grad.is_contiguous()
    gate, up = gate.contiguous(), up.contiguous()
    acted, grad_gate, size = torch.empty_like(gate), torch.empty_like(gate), gate.numel()
    kernels.gated_backward[(-(-size // BLOCK),)](
        gate, up, grad, acted, grad_gate, size, TANH=tanh, BLOCK=BLOCK
    )
    return acted, grad_gate


def rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, direction: float) -> tuple[Tensor, Tensor]:
    """See ``reference.rotary``. Query and key may be strided, but for the last dim."""
    from paceline.models.triton_kernels import kernels

    assert query.stride(-1) == 1 and key.stride(-1) == 1
    # Query and key may stay views; the tables are small.
    cos, sin, half = cos.contiguous(), sin.contiguous(), query.shape[-1] // 2
    outs = tuple(x.new_empty(x.shape) for x in (query, key))
    kernels.rotary[(query.shape[0],)](
        query, key, cos, sin, *outs, query.shape[1], key.shape[1], query.stride(0), query.stride(1),
        key.stride(0), key.stride(1), half, direction, HEADS=HEADS, HALF=power_of_two(half),
    )  # fmt: skip
    return outs[0], outs[1]


def nll_gradient(raw: Tensor, labels: Tensor, scale: float, softcap: float) -> tuple[Tensor, Tensor]:
    """See ``reference.nll_gradient``. ``raw`` must be contiguous, as it is written to."""
    from paceline.models.triton_kernels import kernels

    assert raw.is_contiguous()
    rows, columns = raw.shape
    nll, best = raw.new_empty(rows, dtype=torch.float32), torch.empty_like(labels)
    kernels.nll_gradient[(rows,)](
        # A program a row: its statistics never leave it.
        raw, labels.contiguous(), nll, best, columns, scale, softcap,
        CAPPED=softcap != 0.0, BLOCK=min(COLUMNS, power_of_two(columns)), num_warps=8,
    )  # fmt: skip
    return nll, best


def adamw_rounded(
    weight: Tensor,
    grad: Tensor,
    mean: Tensor,
    square: Tensor,
    numbers: Sequence[float],
    keys: Sequence[int],
    first: int,
) -> None:
    """See ``reference.adamw_rounded``. All but ``grad`` must be contiguous, as they are written to."""
    from paceline.models.triton_kernels import kernels

    assert weight.is_contiguous() and mean.is_contiguous() and square.is_contiguous()
    size = weight.numel()
    kernels.adamw_rounded[(-(-size // BLOCK),)](
        weight, grad.contiguous(), mean, square, size, first, *keys, *numbers, BLOCK=BLOCK
    )
