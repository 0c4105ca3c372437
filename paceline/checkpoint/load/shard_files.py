"""A checkpoint's shards, opened on demand and hashed as they are read. No torch.

The number of open files is limited. Files are hashed leaf by leaf, so that reading also verifies them. When
the ranks verify together, they exchange the hashes of leaves that they read, and divide the unread leaves. A
damaged block raises the same error on all ranks.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Protocol, TypedDict

from paceline.checkpoint import codes
from paceline.checkpoint.collective import CheckpointWorld, on_all_ranks
from paceline.checkpoint.errors import damaged, incomplete
from paceline.checkpoint.format.block_hashes import SHA256, BlockSizes, hash_of_block
from paceline.checkpoint.format.manifest import Manifest
from paceline.checkpoint.format.verify_files import open_if_there, open_part, verify_open, wrong_block
from paceline.core.errors import CheckpointError

# Far below a soft limit of 1,024 open files, which data workers and sockets share.
AT_ONCE = 64  # open shards of one reader
Owners = range | tuple[int, ...]  # ranks


class RemoteFiles(Protocol):
    """Access to a checkpoint's files that are not in its folder here."""

    def fetch(self, name: str) -> None:
        """Fetch a file into the folder.

        Raises CheckpointError: ``checkpoint.damaged`` if no node has an intact copy.
        """

    def owners(self, name: str) -> Owners:
        """Return the ranks of one disk that has the file."""

    @property
    def disk_of_ranks(self) -> Sequence[int]:
        """By rank, the number of the disk that it sees."""


class OpenFiles:
    """The shards ``names`` in ``path`` by number. A file that is opened again must be the same file.

    A missing one is fetched from ``elsewhere``. Raises CheckpointError if one is missing, is no regular file,
    was replaced, or ends early. While ``damage_is_found_later`` (by later hash checks), a shard that is
    damaged on every node reads as zeros.
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
        """Return the open file; close the least recently used ones."""
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
        # Files are closed and opened again by the limit above, and may change in between.
        identity = (info.st_dev, info.st_ino, info.st_mtime_ns)
        if self._seen.setdefault(number, identity) != identity:
            raise damaged(self.path, name, "it was replaced or written to while it was being read")
        while len(self._open) > AT_ONCE:
            self._open.popitem(last=False)[1].close()
        return file

    def read_into(self, view: memoryview, number: int, at: int) -> None:
        """Fill ``view`` with bytes of shard ``number``, from offset ``at``."""
        try:
            descriptor = self.file(number).fileno()
        except CheckpointError:
            if number not in self._lost or not self.damage_is_found_later:
                raise
            view[:] = bytes(len(view))
            return
        self.num_read += len(view)
        while view:
            # Straight into the tensor's memory, without a buffer, and without a shared file position.
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
    """Reads whole leaves of the shards and stores the hash of each; a leaf is hashed once and read once,
    rarely twice.
    """

    def __init__(self, files: OpenFiles, manifest: Manifest) -> None:
        self.files = files
        self.grain: BlockSizes = manifest.grain
        self.blocks: Sequence[tuple[str, ...]] = [manifest.files[name].blocks for name in manifest.shards]
        self._known: list[dict[int, bytes]] = [{} for _ in self.blocks]
        self._edges: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._pool = ThreadPoolExecutor(_HASHED_AT_ONCE)  # hashes release the GIL

    def read_into(self, view: memoryview, number: int, at: int) -> None:
        """Fill ``view`` with bytes of shard ``number`` from offset ``at``."""
        leaf, size, end = self.grain.leaf_bytes, self.files.sizes[number], at + len(view)
        # The whole leaves inside the request: [low, high). Both edges are read as whole leaves, too.
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
        """Read and hash leaves that no rank has read."""
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
        """Return "" for a sound block, the wrong hash for a damaged one; None if a leaf is unknown."""
        leaves = self.grain.leaves(block, self.files.sizes[number])
        # Another rank may have read the rest.
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
            # The next block of the same tensor mostly begins in the leaf in which this one ends.
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


_Known = dict[tuple[int, int], dict[int, bytes]]  # (block's place in the round, disk) → leaf → hash
LEAVES_A_ROUND = 100_000  # their hashes are gathered: 7 MB from each rank at most
_UNREAD = "the checkpoint cannot be verified"


@dataclass(frozen=True)
class Readers:
    """The ranks that see the same files. ``disks``: the disk number of each rank; ``owners``: shard number →
    the ranks of one disk that has it.
    """

    disks: Sequence[int]
    owners: Sequence[Owners]

    @staticmethod
    def all(world_size: int, num_shards: int) -> Readers:
        """Return readers for one shared disk, where every rank sees every shard."""
        return Readers((0,) * world_size, (range(world_size),) * num_shards)

    def of_disk(self, disk: int) -> Owners:
        """Return the ranks that see a disk."""
        if not any(self.disks):
            return range(len(self.disks))
        return tuple(rank for rank, of in enumerate(self.disks) if of == disk)


class _Seen(TypedDict):
    """One rank's known hashes of a round's blocks, by their index in the round."""

    good: list[int]
    wrong: dict[str, str]  # the wrong hash
    parts: dict[str, dict[str, str]]  # leaf → hash, of blocks that it read a part of


def check_blocks(
    ranks: CheckpointWorld, reads: HashedReads, manifest: Manifest, path: Path, readers: Readers
) -> None:
    """Verify every block of every shard; unread leaves are shared out over the ranks. Collective.

    Where ranks see copies of a shard on several disks, each copy of a block that was read is verified. Raises
    the same CheckpointError on every rank, for the first damaged block.
    """
    # In rounds, so that the hashes of leaves fit one message however large the checkpoint is.
    for places in _rounds(reads):
        seen = on_all_ranks(ranks, partial(_seen, reads, places), path, _UNREAD)
        hashes, wanted = _merged(reads, places, seen, readers)
        mine = _share(wanted, ranks.rank)
        more = on_all_ranks(ranks, partial(_read_rest, reads, places, mine), path, _UNREAD)
        verdicts = {int(i): digest for answer in seen for i, digest in answer["wrong"].items()}
        for rank, answer in enumerate(more):
            for i, leaves in answer.items():
                hashes[int(i), readers.disks[rank]] |= _decoded(leaves)
        for (index, _), of_copy in hashes.items():
            if digest := reads.verdict(*places[index], of_copy):
                verdicts.setdefault(index, digest)
        # The first block in order, on every rank: all of them raise the same error.
        if verdicts:
            # All ranks have the same verdicts, so all name the same block.
            first = min(verdicts)
            number, block = places[first]
            name = manifest.shards[number]
            digest = wrong_block(manifest.files[name], block, manifest.grain, verdicts[first])
            raise damaged(path, name, digest)


def check_whole_files(ranks: CheckpointWorld, path: Path, manifest: Manifest) -> None:
    """Verify a checkpoint of version 1, whose files have one hash each: every rank reads some. Collective."""
    names = sorted(manifest.shards, key=lambda name: (-manifest.files[name].bytes, name))
    # Largest first, in turn: each rank hashes about as many bytes.
    mine = names[ranks.rank :: ranks.world_size]

    def work() -> bool:
        for name in mine:
            with open_part(path, name) as file:
                verify_open(file, manifest.files[name], path, name)
        return True

    on_all_ranks(ranks, work, path, _UNREAD)


def _rounds(reads: HashedReads) -> Iterator[list[tuple[int, int]]]:
    """Iterate over the blocks in groups whose leaves' hashes fit one message."""
    some, leaves = list[tuple[int, int]](), 0
    for number, block in reads.places():
        some.append((number, block))
        leaves += len(reads.grain.leaves(block, reads.files.sizes[number]))
        if leaves >= LEAVES_A_ROUND:
            yield some
            some, leaves = [], 0
    if some:
        yield some


def _seen(reads: HashedReads, places: list[tuple[int, int]]) -> _Seen:
    seen: _Seen = {"good": [], "wrong": {}, "parts": {}}
    for i, (number, block) in enumerate(places):
        hashes = reads.known(number, block)
        verdict = reads.verdict(number, block, hashes)
        if verdict == "":
            seen["good"].append(i)
        elif verdict:
            seen["wrong"][str(i)] = verdict
        elif hashes:
            seen["parts"][str(i)] = _encoded(hashes)
    return seen


def _merged(
    reads: HashedReads, places: list[tuple[int, int]], seen: list[_Seen], readers: Readers
) -> tuple[_Known, dict[Owners, list[tuple[int, int]]]]:
    """Return, for blocks that no rank could judge alone, the leaf hashes of their copies, and the unread
    leaves by possible readers. A leaf is (block index in the round, leaf number).
    """
    disks = readers.disks
    judged: set[tuple[int, int]] = set()
    for answer, disk in zip(seen, disks, strict=True):
        judged |= {(i, disk) for i in answer["good"]} | {(int(i), disk) for i in answer["wrong"]}
    hashes: _Known = {}
    for answer, disk in zip(seen, disks, strict=True):
        for i, leaves in answer["parts"].items():
            if (int(i), disk) not in judged:
                hashes.setdefault((int(i), disk), {}).update(_decoded(leaves))
    touched = {i for i, _ in (*judged, *hashes)}
    unread = [i for i in range(len(places)) if i not in touched]
    hashes |= {(i, disks[readers.owners[places[i][0]][0]]): {} for i in unread}
    wanted: dict[Owners, list[tuple[int, int]]] = {}
    of_disk = {disk: wanted.setdefault(readers.of_disk(disk), []) for disk in {of for _, of in hashes}}
    for index, disk in sorted(hashes):
        number, block = places[index]
        leaves_of = reads.grain.leaves(block, reads.files.sizes[number])
        of_disk[disk] += [(index, leaf) for leaf in leaves_of if leaf not in hashes[index, disk]]
    return hashes, wanted


def _share(wanted: Mapping[Owners, list[tuple[int, int]]], rank: int) -> list[tuple[int, int]]:
    """Return this rank's share of the unread leaves; ranks on one disk get equal shares."""
    for ranks, leaves in wanted.items():
        if rank in ranks:
            first, last = (
                len(leaves) * part // len(ranks) for part in (ranks.index(rank), ranks.index(rank) + 1)
            )
            return leaves[first:last]
    return []


def _read_rest(
    reads: HashedReads, places: list[tuple[int, int]], mine: list[tuple[int, int]]
) -> dict[str, dict[str, str]]:
    """Read and hash unread leaves; return their hashes by block and leaf."""
    index = 0
    # Consecutive leaves of a shard are read in one go.
    while index < len(mine):
        i, first = mine[index]
        number, last = places[i][0], first
        while (
            index + 1 < len(mine)
            and places[mine[index + 1][0]][0] == number
            and mine[index + 1][1] == last + 1
        ):
            index, last = index + 1, last + 1
        reads.hash_leaves(number, range(first, last + 1))
        index += 1
    wanted: dict[int, set[int]] = {}
    for i, leaf in mine:
        wanted.setdefault(i, set()).add(leaf)
    return {
        str(i): _encoded({leaf: of for leaf, of in reads.known(*places[i]).items() if leaf in leaves})
        for i, leaves in wanted.items()
    }


def _encoded(leaves: Mapping[int, bytes]) -> dict[str, str]:
    return {str(leaf): digest.hex() for leaf, digest in leaves.items()}


def _decoded(leaves: Mapping[str, str]) -> dict[int, bytes]:
    return {int(leaf): bytes.fromhex(digest) for leaf, digest in leaves.items()}
