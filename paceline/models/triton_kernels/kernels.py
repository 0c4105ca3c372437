"""The kernels in Triton. Import only where Triton is installed (``launch`` does, on its first call).

All arithmetic is fp32, rounded once on the way out. Rows are contiguous unless a stride is given; offsets are
int64, as logits and activations have more than 2³¹ bytes.
"""

from __future__ import annotations

import triton
import triton.language as tl

LEAST: tl.constexpr = tl.constexpr(-1e38)  # below any logit; finite, so that differences are no NaN


@triton.jit
def rms_norm(x, weight, y, rstd, rows, width, eps, offset, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """y [rows, width] = x · rstd · (offset + weight); rstd [rows] fp32."""
    # [ROWS, 1] and [1, WIDTH], which broadcast to the tile.
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    inside = (row < rows) & (column < width)
    value = tl.load(x + row * width + column, mask=inside, other=0.0).to(tl.float32)
    gain = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32) + offset
    inverse = 1.0 / tl.sqrt(tl.sum(value * value, 1)[:, None] / width + eps)
    tl.store(y + row * width + column, (value * inverse * gain).to(y.dtype.element_ty), mask=inside)
    tl.store(rstd + row, inverse, mask=row < rows)


@triton.jit
def rms_norm_backward(
    grad, x, weight, rstd, grad_x, partial, rows, width, offset, ROWS: tl.constexpr, WIDTH: tl.constexpr
):
    """grad_x [rows, width]; partial [programs, width] fp32: each program's sum of grad · x · rstd."""
    program = tl.program_id(0)
    column = tl.arange(0, WIDTH)[None, :]
    gain = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32) + offset
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    # Strided: the number of programs, hence of partial sums, does not grow with the rows.
    for block in range(program, tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < rows) & (column < width)
        at = row * width + column
        inverse = tl.load(rstd + row, mask=row < rows, other=0.0)
        normed = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) * inverse
        given = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        total += given * normed
        given *= gain
        mean = tl.sum(given * normed, 1)[:, None] / width
        # With n = x · r and g = grad · gain: dx = r · (g - n · mean(g · n)).
        tl.store(grad_x + at, ((given - normed * mean) * inverse).to(grad_x.dtype.element_ty), mask=inside)
    summed = tl.sum(total, 0)[None, :]
    tl.store(partial + program.to(tl.int64) * width + column, summed, mask=column < width)


@triton.jit
def _activation(value, TANH: tl.constexpr):
    """act(v) = v · σ(u): return σ(u) and v · du/dv, where u = v (SiLU) or 2·√(2/π)·(v + 0.044715·v³)."""
    if TANH:
        # 2·√(2/π), as (1 + tanh(z)) / 2 = σ(2z).
        inner = 1.5957691216057308 * value * (1.0 + 0.044715 * value * value)
        # 0.134145 = 3 · 0.044715
        moved = 1.5957691216057308 * value * (1.0 + 0.134145 * value * value)
    else:
        inner = value
        moved = value
    return 1.0 / (1.0 + tl.exp(-inner)), moved


@triton.jit
def gated(gate, up, acted, size, TANH: tl.constexpr, BLOCK: tl.constexpr):
    """acted = act(gate) · up, elementwise over ``size`` elements; act(gate) is rounded as by the models' own
    modules, which make a tensor of it.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    share, _ = _activation(g, TANH)
    active = (g * share).to(acted.dtype.element_ty).to(tl.float32)
    tl.store(acted + at, (active * u).to(acted.dtype.element_ty), mask=inside)


@triton.jit
def gated_backward(gate, up, grad, acted, grad_gate, size, TANH: tl.constexpr, BLOCK: tl.constexpr):
    """Write ``acted`` as ``gated`` does, ``grad_gate``, and the gradient of ``up`` over ``grad`` (that of
    ``acted``)."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    share, moved = _activation(g, TANH)
    active = g * share
    rounded = active.to(acted.dtype.element_ty).to(tl.float32)
    tl.store(acted + at, (rounded * u).to(acted.dtype.element_ty), mask=inside)
    # d (v · σ(u)) / dv = σ + v · σ · (1 - σ) · du/dv
    derivative = share * (1.0 + moved * (1.0 - share))
    tl.store(grad_gate + at, (d * u * derivative).to(grad_gate.dtype.element_ty), mask=inside)
    tl.store(grad + at, (d * active).to(grad.dtype.element_ty), mask=inside)


@triton.jit
def _turned(
    x, out, cosine, sine, token, heads, by_token, by_head, half, HEADS: tl.constexpr, HALF: tl.constexpr
):
    dim = tl.arange(0, HALF)[None, :]
    for first in range(0, heads, HEADS):
        head = first + tl.arange(0, HEADS)[:, None]
        inside = (head < heads) & (dim < half)
        source = x + token * by_token + head * by_head + dim
        a = tl.load(source, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(source + half, mask=inside, other=0.0).to(tl.float32)
        # The output is contiguous, whatever the strides of the input.
        target = out + (token * heads + head) * (2 * half) + dim
        tl.store(target, (a * cosine - b * sine).to(out.dtype.element_ty), mask=inside)
        tl.store(target + half, (b * cosine + a * sine).to(out.dtype.element_ty), mask=inside)


@triton.jit
def rotary(
    query,
    key,
    cos,
    sin,
    query_out,
    key_out,
    query_heads,
    key_heads,
    query_by_token,
    query_by_head,
    key_by_token,
    key_by_head,
    half,
    direction,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    """Rotate one token's heads of query and key; outputs [T, heads, 2·half], cos and sin [T, 2·half]."""
    token = tl.program_id(0).to(tl.int64)
    dim = tl.arange(0, HALF)[None, :]
    at = token * (2 * half) + dim
    cosine = tl.load(cos + at, mask=dim < half, other=0.0).to(tl.float32)
    # -1 turns back, which is the backward.
    sine = tl.load(sin + at, mask=dim < half, other=0.0).to(tl.float32) * direction
    _turned(
        query, query_out, cosine, sine, token, query_heads, query_by_token, query_by_head, half, HEADS, HALF
    )
    _turned(key, key_out, cosine, sine, token, key_heads, key_by_token, key_by_head, half, HEADS, HALF)


@triton.jit
def _logit(raw, scale, softcap, CAPPED: tl.constexpr):
    value = raw.to(tl.float32) * scale
    if CAPPED:
        small = tl.exp(-2.0 * tl.abs(value) / softcap)  # tanh; Triton has none that its interpreter knows
        value = softcap * tl.where(value < 0, small - 1.0, 1.0 - small) / (1.0 + small)
    return value


@triton.jit
def nll_gradient(raw, label, nll, best, columns, scale, softcap, CAPPED: tl.constexpr, BLOCK: tl.constexpr):
    """One row of raw [rows, columns]: -log p(label) and the best column; ``raw`` becomes d nll / d raw.

    Reads the row twice: largest logit and sum of exponentials (a pair a lane, joined at the end), then the
    gradient.
    """
    row = tl.program_id(0).to(tl.int64)
    raw += row * columns
    target = tl.load(label + row)
    # Read first: the row is overwritten below.
    wanted = _logit(tl.load(raw + target), scale, softcap, CAPPED)
    lane = tl.arange(0, BLOCK)
    top = tl.full([BLOCK], LEAST, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    place = tl.zeros([BLOCK], tl.int32)
    for start in range(0, columns, BLOCK):
        column = start + lane
        given = tl.load(raw + column, mask=column < columns, other=0.0)
        # Columns beyond the row weigh exp(LEAST - top) = 0.
        value = tl.where(column < columns, _logit(given, scale, softcap, CAPPED), LEAST)
        larger = tl.maximum(top, value)
        # Strictly larger: the first of equal logits, as argmax takes it.
        place = tl.where(value > top, column, place)
        # The running sum is moved to the new largest logit (Milakov and Gimelshein 2018, arXiv:1805.02867).
        total = total * tl.exp(top - larger) + tl.exp(value - larger)
        top = larger
    most = tl.max(top, 0)
    summed = tl.sum(total * tl.exp(top - most), 0)
    tl.store(nll + row, tl.log(summed) + (most - wanted))
    tl.store(best + row, tl.min(tl.where(top == most, place, columns), 0).to(tl.int64))
    for start in range(0, columns, BLOCK):
        column = start + lane
        inside = column < columns
        value = _logit(tl.load(raw + column, mask=inside, other=0.0), scale, softcap, CAPPED)
        # (softmax - one-hot), through the scale and, with a cap, through tanh' = 1 - tanh².
        derivative = (tl.exp(value - most) / summed - tl.where(column == target, 1.0, 0.0)) * scale
        if CAPPED:
            derivative *= 1.0 - (value / softcap) * (value / softcap)
        tl.store(raw + column, derivative.to(raw.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["first", "key", "other"])
def adamw_rounded(
    weight,
    grad,
    mean,
    square,
    size,
    first,
    key,
    other,
    decay,
    rate,
    root,
    beta1,
    beta2,
    eps,
    BLOCK: tl.constexpr,
):
    """AdamW's step over ``size`` elements, in place; the new weight (bf16) is rounded by noise of its place
    ``first`` + i and the two keys: see ``reference.adamw_rounded``.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    given = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    average = tl.load(mean + at, mask=inside, other=0.0)
    # β1 m + (1 - β1) g, as torch's lerp rounds it.
    average += (1 - beta1) * (given - average)
    squares = tl.load(square + at, mask=inside, other=0.0) * beta2 + (1 - beta2) * given * given
    tl.store(mean + at, average, mask=inside)
    tl.store(square + at, squares, mask=inside)
    exact = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32) * decay
    exact -= rate * average / (tl.sqrt(squares) * root + eps)
    x = (at + first).to(tl.uint32) ^ key.to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    x = (x ^ (x >> 16)) + other.to(tl.uint32)
    x = (x ^ (x >> 15)) * 0x85EBCA6B
    noise = (x ^ (x >> 16)) & 0xFFFF
    bits = (exact.to(tl.uint32, bitcast=True) + noise) & 0xFFFF0000
    tl.store(weight + at, bits.to(tl.float32, bitcast=True).to(weight.dtype.element_ty), mask=inside)
