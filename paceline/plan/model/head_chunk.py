"""How many bytes of logits the head computes at a time: the plan counts them, the model asks for its
device.
"""

from __future__ import annotations

LEAST_CHUNK, MOST_CHUNK = 64 * 2**20, 512 * 2**20
_CHUNK_SHARE = 96


def head_chunk_bytes(memory_bytes: float) -> int:
    """Return the bytes of one chunk on a device with so much memory (0: a CPU, or unknown): a power of two.

    Each chunk reads and writes the head's whole gradient [V, H] in fp32 once: 64 MiB chunks of 16 k tokens
    and 128 k words are 94 passes, 512 MiB 12.
    """
    share = int(memory_bytes) // _CHUNK_SHARE
    return min(MOST_CHUNK, max(LEAST_CHUNK, 1 << share.bit_length() - 1)) if share else LEAST_CHUNK
