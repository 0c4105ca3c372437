"""Counter-based sampling noise (contract 6): a token's noise is a function of its stream, its place in the answer and its id alone."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as int64
_FIRST, _SECOND = (
    -49064778989728563,
    -4265267296055464877,
)  # 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53: MurmurHash3's finaliser
_SIGNED = 1 << 63
_CACHED = 1 << 15  # numbers of 8 bytes


def stream_of(seed: int, *parts: int) -> int:
    """A signed 64-bit key for the answer that ``parts`` name (epoch, prompt's id, sample number)."""
    text = "\x1f".join(str(part) for part in ("rollout", seed, *parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") - _SIGNED


def gumbel(streams: Tensor, places: Tensor, vocabulary: int) -> Tensor:
    """fp32 [B, vocabulary]: standard Gumbel noise for the token at ``places`` [B] (0: the first of an answer) of ``streams`` int64 [B].

    argmax(logits + Gumbel noise) is a draw from softmax(logits) (Gumbel 1954), and two ranks whose logits differ in their last bits draw the same
    token unless the two best lie that close together.
    """
    keys = mixed(streams + (places + 1) * _GOLDEN)
    ids = torch.arange(1, vocabulary + 1, device=streams.device).mul_(_GOLDEN)
    noise = torch.empty(len(keys), vocabulary, device=streams.device)
    rows = max(1, _CACHED // vocabulary)
    for start in range(0, len(keys), rows):  # a few rows at a time stay in the processor's cache
        part = keys[start : start + rows]
        uniform = noise[start : start + rows].copy_(
            top_bits(part, ids) if streams.device.type != "cpu" else _top_bits(part, ids)
        )
        uniform.add_(0.5).mul_(2.0**-24).log_().neg_().log_().neg_()
    return noise


def mixed(x: Tensor) -> Tensor:
    """MurmurHash3's 64-bit finaliser, elementwise and in place on int64 with wrap-around."""
    shifted = torch.empty_like(x)
    for factor in (_FIRST, _SECOND, 1):
        torch.bitwise_right_shift(x, 33, out=shifted)
        x.bitwise_xor_(shifted.bitwise_and_(0x7FFFFFFF))
        if factor != 1:
            x.mul_(factor)
    return x


def top_bits(keys: Tensor, ids: Tensor) -> Tensor:
    """int64 [B, V]: the upper 24 of the 64 bits of ``mixed(key + id)``."""
    return mixed(keys[:, None] + ids[None, :]).bitwise_right_shift_(40).bitwise_and_(0xFFFFFF)


def _top_bits(keys: Tensor, ids: Tensor) -> Tensor:
    """The same as int32, on a CPU: NumPy's shifts of unsigned numbers need no mask. The finaliser's last shift does not reach the upper bits."""
    x = np.add.outer(keys.numpy().view(np.uint64), ids.numpy().view(np.uint64))
    shifted = np.empty_like(x)
    for factor in (_FIRST, _SECOND):
        np.right_shift(x, np.uint64(33), out=shifted)
        np.bitwise_xor(x, shifted, out=x)
        np.multiply(x, np.uint64(factor % (1 << 64)), out=x)
    np.right_shift(x, np.uint64(40), out=x)
    return torch.from_numpy(x.view(np.int64).astype(np.int32))
