"""Reads that hash what they read, leaf by leaf: the resume itself verifies the checkpoint. No torch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from paceline.checkpoint.format.block_hashes import SHA256, Grain, hash_of_block
from paceline.checkpoint.format.manifest import Manifest
from paceline.checkpoint.load.open_files import OpenFiles

_EDGES = 64  # leaves kept in memory that were read for a part of them
_HASHED_AT_ONCE = 8
_PIECE = 8 * 1024 * 1024


class HashedReads:
    """Reads whole leaves of the shards and remembers the hash of each; a leaf is read once, or rarely
    twice, and hashed once.
    """

    def __init__(self, files: OpenFiles, manifest: Manifest) -> None:
        self.files = files
        self.grain: Grain = manifest.grain
        self.blocks: Sequence[tuple[str, ...]] = [manifest.files[name].blocks for name in manifest.shards]
        self._known: list[dict[int, bytes]] = [{} for _ in self.blocks]
        self._edges: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._pool = ThreadPoolExecutor(_HASHED_AT_ONCE)  # hashes release the GIL

    def read_into(self, view: memoryview, number: int, at: int) -> None:
        """Fill ``view`` with the bytes at ``at`` of shard ``number``."""
        leaf, size, end = self.grain.leaf_bytes, self.files.sizes[number], at + len(view)
        low = -(-at // leaf) * leaf
        high = end if end == size else end // leaf * leaf
        if low >= high:  # no whole leaf
            low = high = min(low, end)
        for first, last in ((at, low), (high, end)):
            while first < last:
                piece = self._edge(number, first // leaf)
                begin = first % leaf
                part = piece[begin : begin + last - first]
                view[first - at : first - at + len(part)] = part
                first += len(part)
        if low < high:
            inside = view[low - at : high - at]
            self.files.read_into(inside, number, low)
            self._hash(inside, number, low // leaf)

    def hash_leaves(self, number: int, leaves: range) -> None:
        """Read and hash leaves that nobody wanted."""
        leaf, size = self.grain.leaf_bytes, self.files.sizes[number]
        at, end = leaves.start * leaf, min(size, leaves.stop * leaf)
        piece = memoryview(bytearray(min(max(leaf, _PIECE // leaf * leaf), end - at)))
        while at < end:
            part = piece[: end - at]
            self.files.read_into(part, number, at)
            self._hash(part, number, at // leaf)
            at += len(part)

    def known(self, number: int, block: int) -> dict[int, bytes]:
        """Return leaf number → hash of the leaves of a block that this rank has read."""
        leaves = self.grain.leaves(block, self.files.sizes[number])
        known = self._known[number]
        return {at: known[at] for at in leaves if at in known}

    def verdict(self, number: int, block: int, known: dict[int, bytes]) -> str | None:
        """Return "" for a sound block, its wrong hash for another; None if a leaf is not known."""
        leaves = self.grain.leaves(block, self.files.sizes[number])
        if len(known) < len(leaves):
            return None
        found = hash_of_block(known[at] for at in leaves)
        return "" if found == self.blocks[number][block] else found

    def places(self) -> Iterator[tuple[int, int]]:
        """Iterate over all blocks: shard number, block number."""
        return ((number, at) for number, blocks in enumerate(self.blocks) for at in range(len(blocks)))

    def end(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _edge(self, number: int, leaf: int) -> bytes:
        key = (number, leaf)
        if key not in self._edges:
            at = leaf * self.grain.leaf_bytes
            piece = memoryview(bytearray(min(self.grain.leaf_bytes, self.files.sizes[number] - at)))
            self.files.read_into(piece, number, at)
            self._hash(piece, number, leaf)
            self._edges[key] = bytes(piece)
            if len(self._edges) > _EDGES:
                self._edges.popitem(last=False)
        self._edges.move_to_end(key)
        return self._edges[key]

    def _hash(self, view: memoryview, number: int, first: int) -> None:
        leaf, known = self.grain.leaf_bytes, self._known[number]

        def of(at: int) -> tuple[int, bytes]:
            return first + at // leaf, self.grain.hash_of_leaf(view[at : at + leaf])

        wanted = [at for at in range(0, len(view), leaf) if first + at // leaf not in known]
        # XXH3 takes a leaf faster than a thread takes a task
        several = len(wanted) > 1 and self.grain.leaf_hash == SHA256
        known.update(self._pool.map(of, wanted) if several else map(of, wanted))
