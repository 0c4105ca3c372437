"""A checkpoint's shards, opened when wanted and hashed as they are read. No torch.

Only so many are open at a time. Hashes are taken leaf by leaf: the resume itself verifies the checkpoint.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, Protocol

from paceline.checkpoint import codes
from paceline.checkpoint.errors import damaged, incomplete
from paceline.checkpoint.format.block_hashes import SHA256, BlockSizes, hash_of_block
from paceline.checkpoint.format.manifest import Manifest
from paceline.checkpoint.format.verify_files import open_if_there, open_part
from paceline.core.errors import CheckpointError

# Far below a soft limit of 1,024 open files, which data workers and sockets share.
AT_ONCE = 64  # open shards of one reader
Owners = range | tuple[int, ...]  # ranks


class RemoteFiles(Protocol):
    """Where files are that are not in a checkpoint's folder here."""

    def fetch(self, name: str) -> None:
        """Bring a file into the folder.

        Raises CheckpointError: ``checkpoint.damaged`` if no node has it as it was saved.
        """

    def owners(self, name: str) -> Owners:
        """Return ranks that see one disk which has it."""

    @property
    def disk_of_ranks(self) -> Sequence[int]:
        """By rank, the number of the disk that it sees."""


class OpenFiles:
    """The shards ``names`` in ``path`` by number. A file that is opened again must be the same file.

    One that is missing is brought from ``elsewhere``. Raises CheckpointError if one is missing, is no
    regular file, was replaced, or ends early. While ``damage_is_found_later`` (by hashes that do not fit),
    one that is damaged on every node that has it reads as zeros.
    """

    def __init__(
        self, path: Path, names: Sequence[str], sizes: Sequence[int], elsewhere: RemoteFiles | None = None
    ) -> None:
        self.path, self.names, self.sizes = path, names, sizes
        self.num_read = 0  # bytes that were asked of the file system
        self._open: OrderedDict[int, BinaryIO] = OrderedDict()
        self._seen: dict[int, tuple[int, int, int]] = {}
        self._elsewhere = elsewhere
        self._lost: dict[int, CheckpointError] = {}
        self.damage_is_found_later = False

    def file(self, number: int) -> BinaryIO:
        """Return the open file; the ones that were not used for longest are closed."""
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        name = self.names[number]
        file = open_if_there(self.path, name) or self._fetched(number, name)
        self._open[number] = file
        info = os.fstat(file.fileno())
        if info.st_size != self.sizes[number]:
            raise damaged(self.path, name, f"{info.st_size} bytes instead of {self.sizes[number]}")
        # A file that was replaced while it is read would mix two checkpoints.
        identity = (info.st_dev, info.st_ino, info.st_mtime_ns)
        if self._seen.setdefault(number, identity) != identity:
            raise damaged(self.path, name, "it was replaced or written to while it was being read")
        while len(self._open) > AT_ONCE:
            self._open.popitem(last=False)[1].close()
        return file

    def read_into(self, view: memoryview, number: int, at: int) -> None:
        """Fill ``view`` with the bytes at ``at``."""
        try:
            descriptor = self.file(number).fileno()
        except CheckpointError:
            if number not in self._lost or not self.damage_is_found_later:
                raise
            view[:] = bytes(len(view))
            return
        self.num_read += len(view)
        while view:
            got = os.preadv(descriptor, [view], at)
            if got == 0:
                raise damaged(self.path, self.names[number], f"it ended at byte {at}")
            view, at = view[got:], at + got

    def _fetched(self, number: int, name: str) -> BinaryIO:
        if self._elsewhere is None:
            raise incomplete(self.path, f"{name} is missing")
        if number in self._lost:
            raise self._lost[number]
        try:
            self._elsewhere.fetch(name)
        except CheckpointError as error:
            if error.diagnostics[0].code == codes.CHECKPOINT_DAMAGED.name:
                self._lost[number] = error
            raise
        return open_part(self.path, name)

    def close(self) -> None:
        """Close all files. Safe to call twice."""
        while self._open:
            self._open.popitem()[1].close()


# A rank that reads blocks in order comes back to a few edges only: 16 MiB.
_EDGES = 64  # leaves kept in memory that were read for a part of them
_HASHED_AT_ONCE = 8
_PIECE = 8 * 1024 * 1024


class HashedReads:
    """Reads whole leaves of the shards and remembers the hash of each; a leaf is read once, or rarely
    twice, and hashed once.
    """

    def __init__(self, files: OpenFiles, manifest: Manifest) -> None:
        self.files = files
        self.grain: BlockSizes = manifest.grain
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
        begin, end = leaves.start * leaf, min(size, leaves.stop * leaf)
        piece = memoryview(bytearray(min(max(leaf, _PIECE // leaf * leaf), end - begin)))
        while begin < end:
            part = piece[: end - begin]
            self.files.read_into(part, number, begin)
            self._hash(part, number, begin // leaf)
            begin += len(part)

    def known(self, number: int, block: int) -> dict[int, bytes]:
        """Return leaf number → hash of the leaves of a block that this rank has read."""
        leaves = self.grain.leaves(block, self.files.sizes[number])
        hashes = self._known[number]
        return {leaf: hashes[leaf] for leaf in leaves if leaf in hashes}

    def verdict(self, number: int, block: int, hashes: dict[int, bytes]) -> str | None:
        """Return "" for a sound block, its wrong hash for another; None if a leaf is not known."""
        leaves = self.grain.leaves(block, self.files.sizes[number])
        if len(hashes) < len(leaves):
            return None
        digest = hash_of_block(hashes[leaf] for leaf in leaves)
        return "" if digest == self.blocks[number][block] else digest

    def places(self) -> Iterator[tuple[int, int]]:
        """Iterate over all blocks: shard number, block number."""
        return ((number, block) for number, blocks in enumerate(self.blocks) for block in range(len(blocks)))

    def end(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _edge(self, number: int, leaf: int) -> bytes:
        key = (number, leaf)
        if key not in self._edges:
            begin = leaf * self.grain.leaf_bytes
            piece = memoryview(bytearray(min(self.grain.leaf_bytes, self.files.sizes[number] - begin)))
            self.files.read_into(piece, number, begin)
            self._hash(piece, number, leaf)
            self._edges[key] = bytes(piece)
            if len(self._edges) > _EDGES:
                self._edges.popitem(last=False)
        self._edges.move_to_end(key)
        return self._edges[key]

    def _hash(self, view: memoryview, number: int, first: int) -> None:
        leaf, hashes = self.grain.leaf_bytes, self._known[number]

        def of(begin: int) -> tuple[int, bytes]:
            return first + begin // leaf, self.grain.hash_of_leaf(view[begin : begin + leaf])

        wanted = [begin for begin in range(0, len(view), leaf) if first + begin // leaf not in hashes]
        # XXH3 takes a leaf faster than a thread takes a task
        several = len(wanted) > 1 and self.grain.leaf_hash == SHA256
        hashes.update(self._pool.map(of, wanted) if several else map(of, wanted))
