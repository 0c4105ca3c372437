"""Counter-based randomness in NumPy: equal on every platform, NumPy version and world size."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
# 2^64 divided by the golden ratio, SplitMix64's increment
_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def mix(values: U64) -> U64:
    """Apply SplitMix64's finalizer, elementwise on uint64.

    Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators".
    """
    z = values.astype(np.uint64, copy=True)
    z ^= z >> np.uint64(30)
    # Constants and shifts of Stafford's 13th mix, which SplitMix64 took over
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def stream_key(*parts: int | str) -> int:
    """Return a 64-bit key for a named stream, such as ``stream_key(seed, "pack", epoch)``."""
    # A separator that no part has: ("a", "bc") and ("ab", "c") differ.
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def hash_values(key: int, values: U64) -> U64:
    """Return uint64 [n]: a pseudo-random number for each value of a stream."""
    return mix(mix(values ^ np.uint64(key)) + np.uint64((key * _GAMMA + _GAMMA) & _MASK))


def permutation(key: int, num: int) -> NDArray[np.int64]:
    """Return int64 [num]: a permutation of 0 … num-1 that depends only on ``key`` and ``num``.

    The argsort of hashed counters, ties by index.
    """
    # Stable: equal hashes would be ordered as the platform's sort likes
    return np.argsort(hash_values(key, np.arange(num, dtype=np.uint64)), kind="stable").astype(
        np.int64, copy=False
    )


def text_key(text: str) -> int:
    """Return a 64-bit hash of a text, ignoring differences in white space.

    It defines "the same prompt" in splits and overlap warnings.
    """
    return int.from_bytes(
        hashlib.blake2b(" ".join(text.split()).encode("utf-8", "surrogatepass"), digest_size=8).digest(),
        "little",
    )
