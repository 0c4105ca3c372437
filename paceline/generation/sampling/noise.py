"""Counter-based sampling noise (contract 6): a function of stream, position and token id only."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as int64
# 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53: MurmurHash3's finalizer
_FIRST, _SECOND = (-49064778989728563, -4265267296055464877)
_SIGNED = 1 << 63
_LARGEST = 1.0 - 2.0**-24
_CACHED, _ON_DEVICE = 1 << 15, 1 << 26  # numbers of 8 bytes


def stream_of(seed: int, *parts: int) -> int:
    """Return a signed 64-bit key for the answer named by ``parts`` (epoch, prompt's id, sample number)."""
    text = "\x1f".join(str(part) for part in ("rollout", seed, *parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") - _SIGNED


def gumbel(streams: Tensor, places: Tensor, vocabulary: int) -> Tensor:
    """Return standard Gumbel noise, fp32 [B, vocabulary], for positions ``places`` [B] of ``streams`` [B].

    Both are int64; position 0 is an answer's first token. argmax(logits + Gumbel noise) is a sample from
    softmax(logits) (Gumbel 1954). Two ranks whose logits differ in their last bits sample the same token
    unless the two best are that close.
    """
    on_cpu = streams.device.type == "cpu"
    # SplitMix64's way: a counter times the golden ratio, then a finalizer. int64 wraps around.
    keys = mixed(streams + (places + 1) * _GOLDEN)
    ids = torch.arange(1, vocabulary + 1, device=streams.device).mul_(_GOLDEN)
    noise = torch.empty(len(keys), vocabulary, device=streams.device)
    # a few rows at a time fit in a CPU's cache; a device is given all that its memory bears
    rows = max(1, (_CACHED if on_cpu else _ON_DEVICE) // vocabulary)
    for start in range(0, len(keys), rows):
        part, uniform = keys[start : start + rows], noise[start : start + rows]
        if on_cpu:
            uniform.copy_(_top_bits(part, ids)).add_(0.5)
        else:
            torch.add(top_bits(part, ids), 0.5, out=uniform)  # numbers below 2^24 are fp32's own
        # half a step above the highest number is 1 in fp32: its noise would be infinite
        uniform.mul_(2.0**-24).clamp_(max=_LARGEST).log_().neg_().log_().neg_()
    return noise


def mixed(x: Tensor) -> Tensor:
    """Apply MurmurHash3's 64-bit finalizer, elementwise and in place on int64 with wrap-around."""
    return _folded(_folded(_folded(x).mul_(_FIRST)).mul_(_SECOND))


def _folded(x: Tensor) -> Tensor:
    """x ^= x >> 33, unsigned, in place."""
    # The mask clears what an arithmetic shift of a negative number fills in.
    return x.bitwise_xor_(x.bitwise_right_shift(33).bitwise_and_(0x7FFFFFFF))


def top_bits(keys: Tensor, ids: Tensor) -> Tensor:
    """Return the upper 24 bits of ``mixed(key + id)``, int64 [B, V]; the finalizer's last fold does not
    reach them.
    """
    x = _folded(_folded(keys[:, None] + ids[None, :]).mul_(_FIRST)).mul_(_SECOND)
    return x.bitwise_right_shift_(40).bitwise_and_(0xFFFFFF)


def _top_bits(keys: Tensor, ids: Tensor) -> Tensor:
    """The same on a CPU, as int32: NumPy shifts unsigned numbers without a mask.

    The finalizer's last shift does not affect the upper bits, so it is left out.
    """
    x = np.add.outer(keys.numpy().view(np.uint64), ids.numpy().view(np.uint64))
    shifted = np.empty_like(x)
    for factor in (_FIRST, _SECOND):
        np.right_shift(x, np.uint64(33), out=shifted)
        np.bitwise_xor(x, shifted, out=x)
        np.multiply(x, np.uint64(factor % (1 << 64)), out=x)
    np.right_shift(x, np.uint64(40), out=x)
    return torch.from_numpy(x.view(np.int64).astype(np.int32))
