"""Hashes of a shard's blocks, so that ranks can verify a file together and as they read it. No torch.

A block's hash is the sha256 of the hashes of its leaves. Two ranks that each read a part of one block know
the hashes of their leaves. Together they know the block's hash, and no byte is read twice.

Leaves are hashed by XXH3 (128 bits), ten times as fast as sha256. It finds errors of disks and networks.
Against an attacker it protects as much as sha256: whoever can write the shards can also write the manifest
next to them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import xxhash

# A block is one read from object storage, and what is fetched again when it is damaged.
BLOCK_BYTES = 64 * 1024 * 1024
# Small enough that ranks with different shards of a tensor seldom share a leaf, large for a disk.
LEAF_BYTES = 256 * 1024
# Limits of what a manifest may ask for: whoever reads allocates by them.
_MOST_BLOCK_BYTES = 1024 * 1024 * 1024
_MOST_LEAVES = 65_536  # of a block
_PIECE = 8 * 1024 * 1024


class _Hash(Protocol):
    def update(self, data: memoryview, /) -> None: ...

    def digest(self) -> bytes: ...


SHA256, XXH3 = "sha256", "xxh3_128"
LEAF_HASHES: Mapping[str, Callable[[], _Hash]] = {SHA256: hashlib.sha256, XXH3: xxhash.xxh3_128}


@dataclass(frozen=True)
class BlockSizes:
    """Bytes of a block and of a leaf; the last ones of a file may be shorter. ``leaf_hash``: of
    ``LEAF_HASHES``.
    """

    block_bytes: int = BLOCK_BYTES
    leaf_bytes: int = LEAF_BYTES
    leaf_hash: str = XXH3

    @property
    def is_sound(self) -> bool:
        """Whether a block is a whole number of leaves, and both sizes are plausible."""
        return (
            64 <= self.leaf_bytes <= self.block_bytes <= _MOST_BLOCK_BYTES
            and self.block_bytes % self.leaf_bytes == 0
            and self.block_bytes // self.leaf_bytes <= _MOST_LEAVES
            and self.leaf_hash in LEAF_HASHES
        )

    def hash_of_leaf(self, leaf: memoryview) -> bytes:
        """Return the hash of a whole leaf. Releases the interpreter's lock."""
        digest = LEAF_HASHES[self.leaf_hash]()
        digest.update(leaf)
        return digest.digest()

    def blocks(self, num_bytes: int) -> int:
        """Return the number of blocks of a file."""
        return -(-num_bytes // self.block_bytes)

    def leaves(self, block: int, num_bytes: int) -> range:
        """Return the numbers of a block's leaves in a file of ``num_bytes``."""
        first = block * self.block_bytes
        last = min(num_bytes, first + self.block_bytes)
        return range(first // self.leaf_bytes, -(-last // self.leaf_bytes))


def hash_of_block(leaves: Iterable[bytes]) -> str:
    """Return a block's hash (lower-case hex) from the hash of each of its leaves, in order."""
    return hashlib.sha256(b"".join(leaves)).hexdigest()


class BlockHash:
    """The hashes of a file's blocks, taken while it is written from its beginning."""

    def __init__(self, grain: BlockSizes) -> None:
        self._grain, self._new = grain, LEAF_HASHES[grain.leaf_hash]
        self._leaf = self._new()
        self._in_leaf = 0
        self._leaves: list[bytes] = []
        self._blocks: list[str] = []

    def update(self, piece: memoryview) -> None:
        """Take the next bytes of the file."""
        while piece:
            # Pieces come in any size; leaves begin at multiples of their own.
            part = piece[: self._grain.leaf_bytes - self._in_leaf]
            self._leaf.update(part)
            self._in_leaf += len(part)
            piece = piece[len(part) :]
            if self._in_leaf == self._grain.leaf_bytes:
                self._end_leaf()

    def hashes(self) -> tuple[str, ...]:
        """Return the hash of each block, after the last byte."""
        if self._in_leaf:
            self._end_leaf()
        if self._leaves:
            self._end_block()
        return tuple(self._blocks)

    def _end_leaf(self) -> None:
        self._leaves.append(self._leaf.digest())
        self._leaf, self._in_leaf = self._new(), 0
        if len(self._leaves) * self._grain.leaf_bytes == self._grain.block_bytes:
            self._end_block()

    def _end_block(self) -> None:
        self._blocks.append(hash_of_block(self._leaves))
        self._leaves = []


def hash_of_bytes(pieces: Iterable[memoryview], grain: BlockSizes) -> str:
    """Return the hash of one block from its bytes, a piece after another."""
    block = BlockHash(grain)
    for piece in pieces:
        block.update(piece)
    # A block without bytes has no hash; ``nothing`` equals none.
    return (*block.hashes(), "nothing")[0]


def read_block_hash(file: BinaryIO, block: int, num_bytes: int, grain: BlockSizes) -> str:
    """Read a block of an open file and return its hash. Raises OSError."""
    start, end = block * grain.block_bytes, min(num_bytes, (block + 1) * grain.block_bytes)
    reads = (os.pread(file.fileno(), min(_PIECE, end - begin), begin) for begin in range(start, end, _PIECE))
    return hash_of_bytes(map(memoryview, reads), grain)
