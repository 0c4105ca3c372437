# mypy: disable-error-code="no-untyped-def, no-untyped-call, no-any-return"
"""The kernels in Triton. Import only where Triton is installed (``launch`` does, on its first call).

Logits [rows, words] are contiguous. They are compared by ``_order``: the bits of fp32, turned so that
unsigned integers are in the order of the numbers. Probabilities are added as integers, so that no sum depends
on the order of its terms.
"""

from __future__ import annotations

import triton
import triton.language as tl

GOLDEN: tl.constexpr = tl.constexpr(0x9E3779B97F4A7C15)
FIRST: tl.constexpr = tl.constexpr(0xFF51AFD7ED558CCD)  # MurmurHash3's finalizer
SECOND: tl.constexpr = tl.constexpr(0xC4CEB9FE1A85EC53)
ONE: tl.constexpr = tl.constexpr(1099511627776.0)  # 2^40 stands for the likeliest word's probability
LARGEST: tl.constexpr = tl.constexpr(0.99999994)  # 1 - 2^-24: noise is finite


@triton.jit
def _logits(row_of, words, start, temperature, BLOCK: tl.constexpr):
    """Return columns from ``start`` on, and logits / temperature there in fp32; -inf after the last
    column."""
    column = start + tl.arange(0, BLOCK)
    loaded = tl.load(row_of + column, mask=column < words, other=float("-inf")).to(tl.float32)
    # Rounded as torch divides; Triton's own division may be off by a bit.
    value = tl.div_rn(loaded, tl.full([BLOCK], 1.0, tl.float32) * temperature)
    return column, tl.where(value == 0.0, 0.0, value)  # one zero


@triton.jit
def _order(value):
    """Return uint32 numbers that sort as the fp32 ``value`` does."""
    bits = value.to(tl.uint32, bitcast=True)
    return tl.where((bits >> 31) != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def _probability(value, best):
    """exp(value - best) as an integer of at most 2^40."""
    return (tl.exp(value - best) * ONE).to(tl.int64)


@triton.jit
def _weights(row_of, words, start, temperature, best, least, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """Return the orders of a block of columns, and the weight of each: its probability if ``MASS``, else 1; 0
    below ``least``.
    """
    column, value = _logits(row_of, words, start, temperature, BLOCK)
    order = _order(value)
    if MASS:
        weight = _probability(value, best)
    else:
        weight = tl.full([BLOCK], 1, tl.int64)
    return column, order, tl.where((column < words) & (order >= least), weight, 0)


@triton.jit
def _highest(row_of, words, temperature, best, least, wanted, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """Return the highest order at or above which there are ``wanted`` words, or that much mass: two bits a
    pass."""
    border = tl.zeros([BLOCK], tl.uint32)
    step = tl.full([BLOCK], 1 << 30, tl.uint32)
    # 16 passes of two bits make 32.
    for _turn in range(16):
        first = tl.zeros([BLOCK], tl.int64)
        second = tl.zeros([BLOCK], tl.int64)
        third = tl.zeros([BLOCK], tl.int64)
        for start in range(0, words, BLOCK):
            _column, order, weight = _weights(row_of, words, start, temperature, best, least, MASS, BLOCK)
            first += tl.where(order >= border + step, weight, 0)
            second += tl.where(order >= border + 2 * step, weight, 0)
            third += tl.where(order >= border + 3 * step, weight, 0)
        # Counts fall with the order, so the number of steps that hold is the two bits.
        border += tl.where(tl.sum(first, 0) >= wanted, step, 0)
        border += tl.where(tl.sum(second, 0) >= wanted, step, 0)
        border += tl.where(tl.sum(third, 0) >= wanted, step, 0)
        step = step >> 2
    return tl.max(border, 0)


@triton.jit
def nucleus(logits, bounds, words, top_k, top_p, temperature, BLOCK: tl.constexpr):
    """Write bounds [rows, 2] int64: the least kept order, and the last kept column with that order."""
    row = tl.program_id(0).to(tl.int64)
    row_of = logits + row * words
    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, words, BLOCK):
        _column, value = _logits(row_of, words, start, temperature, BLOCK)
        highest = tl.maximum(highest, value)
    best = tl.max(highest, 0)
    least = tl.max(tl.zeros([BLOCK], tl.uint32), 0)
    # A scalar of this type, which ``words`` alone would not give.
    last = tl.max(tl.zeros([BLOCK], tl.int64), 0) + words
    if top_k < words:
        least = _highest(row_of, words, temperature, best, least, top_k, False, BLOCK)
    if top_p < 1.0:
        mass = tl.zeros([BLOCK], tl.int64)
        for start in range(0, words, BLOCK):
            mass += _weights(row_of, words, start, temperature, best, least, True, BLOCK)[2]
        limit = tl.maximum((tl.sum(mass, 0).to(tl.float64) * top_p).to(tl.int64), 1)
        least = _highest(row_of, words, temperature, best, least, limit, True, BLOCK)
        # Of the words of that order the first ones are kept, until the limit is reached.
        same = tl.zeros([BLOCK], tl.int64)
        above = tl.zeros([BLOCK], tl.int64)
        for start in range(0, words, BLOCK):
            _column, order, weight = _weights(row_of, words, start, temperature, best, least, True, BLOCK)
            same = tl.maximum(same, tl.where(order == least, weight, 0))
            above += tl.where(order > least, weight, 0)
        share = tl.max(same, 0)
        # Words of one order have one probability, so this many of them are needed.
        count = (limit - tl.sum(above, 0) + share - 1) // share
        passed = count * 0
        for start in range(0, words, BLOCK):
            column, value = _logits(row_of, words, start, temperature, BLOCK)
            equal = ((column < words) & (_order(value) == least)).to(tl.int64)
            number = passed + tl.cumsum(equal, 0)
            here = tl.max(tl.where((equal == 1) & (number == count), column.to(tl.int64), -1), 0)
            last = tl.where(here >= 0, here, last)
            passed += tl.sum(equal, 0)
    tl.store(bounds + row * 2, least.to(tl.int64))
    tl.store(bounds + row * 2 + 1, last)


@triton.jit
def _mixed(x):
    """Apply MurmurHash3's 64-bit finalizer without its last fold, which does not affect the upper bits."""
    x = (x ^ (x >> 33)) * FIRST
    return (x ^ (x >> 33)) * SECOND


@triton.jit
def uniform(key, column):
    """Return ``noise.gumbel``'s uniform number in (0, 1), from 24 bits of the hash."""
    bits = _mixed(key + (column + 1).to(tl.uint64) * GOLDEN) >> 40
    return tl.minimum((bits.to(tl.float32) + 0.5) * 5.9604644775390625e-08, LARGEST)


@triton.jit
def key_of(stream, position):
    """The hash of an answer's stream and the place of its next token."""
    x = _mixed(stream + (position + 1).to(tl.uint64) * GOLDEN)
    return x ^ (x >> 33)


@triton.jit
def draw(
    logits, bounds, streams, places, scores, columns, highest, sums, words, part, step, temperature,
    SAMPLED: tl.constexpr, BOUNDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write for each part of a row: the best score (logit and noise) with its column, the highest logit, and
    the sum of exp(logit - highest); all [rows, parts]. ``step``: the stride of ``places``.
    """
    row, parts = tl.program_id(0).to(tl.int64), tl.num_programs(1)
    row_of = logits + row * words
    begin = tl.program_id(1) * part
    if SAMPLED:
        key = key_of(tl.load(streams + row).to(tl.uint64, bitcast=True), tl.load(places + row * step))
    if BOUNDED:
        least, last = tl.load(bounds + row * 2).to(tl.uint32), tl.load(bounds + row * 2 + 1)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_column = tl.full([BLOCK], 2147483647, tl.int32)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(begin, tl.minimum(begin + part, words), BLOCK):
        column, value = _logits(row_of, words, start, temperature, BLOCK)
        inside = column < tl.minimum(begin + part, words)
        value = tl.where(inside, value, float("-inf"))
        score = value
        if SAMPLED:
            score = tl.where(inside, value + (-tl.log(-tl.log(uniform(key, column)))), float("-inf"))
        if BOUNDED:
            order = _order(value)
            score = tl.where((order > least) | ((order == least) & (column <= last)), score, float("-inf"))
        # The first column counts even if its score is -inf.
        better = inside & ((score > best) | (best_column == 2147483647))
        best, best_column = tl.where(better, score, best), tl.where(better, column, best_column)
        higher = tl.maximum(top, value)
        # -inf - -inf would be NaN.
        moved = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(top - moved) + tl.exp(value - moved)
        top = higher
    winner, peak = tl.max(best, 0), tl.max(top, 0)
    column = tl.min(tl.where(best == winner, best_column, 2147483647), 0)
    shift = tl.where(peak == float("-inf"), 0.0, peak)
    slot = row * parts + tl.program_id(1)
    tl.store(scores + slot, winner)
    tl.store(columns + slot, column)
    tl.store(highest + slot, peak)
    tl.store(sums + slot, tl.sum(total * tl.exp(top - shift), 0))


@triton.jit
def join(
    logits, scores, columns, highest, sums, tokens, logprobs, words, parts, temperature, PARTS: tl.constexpr
):
    """tokens [rows] int64 and logprobs [rows] fp32 from the parts of each row."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, PARTS)
    inside, slot = lane < parts, row * parts + lane
    score = tl.load(scores + slot, mask=inside, other=float("-inf"))
    column = tl.load(columns + slot, mask=inside, other=2147483647)
    top = tl.load(highest + slot, mask=inside, other=float("-inf"))
    total = tl.load(sums + slot, mask=inside, other=0.0)
    # The first column of equal scores, as argmax.
    token = tl.min(tl.where(inside & (score == tl.max(score, 0)), column, 2147483647), 0)
    token = tl.minimum(token, words - 1)
    peak = tl.max(top, 0)
    logsumexp = peak + tl.log(tl.sum(total * tl.exp(top - peak), 0))
    logit = tl.load(logits + row * words + token).to(tl.float32)
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(logprobs + row, tl.div_rn(logit, temperature) - logsumexp)
