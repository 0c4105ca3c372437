"""Verify a checkpoint over all ranks: what they read is known, what nobody read is shared out. No torch.

Verdicts are gathered: a damaged block that one rank saw is the same error on all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypedDict

from paceline.checkpoint.collective import CheckpointWorld, on_all_ranks
from paceline.checkpoint.errors import damaged
from paceline.checkpoint.format.manifest import Manifest
from paceline.checkpoint.format.verify_files import open_part, verify_open, wrong_block
from paceline.checkpoint.load.shard_files import HashedReads, Owners

_Known = dict[tuple[int, int], dict[int, bytes]]  # (block's place in the round, disk) → leaf → hash
LEAVES_A_ROUND = 100_000  # their hashes are gathered: 7 MB from each rank at most
_UNREAD = "the checkpoint cannot be verified"


@dataclass(frozen=True)
class Readers:
    """Which ranks see the same files: ``disks``, a number by rank, and ``owners``, by the shard's number the
    ranks of one disk that has it.
    """

    disks: Sequence[int]
    owners: Sequence[Owners]

    @staticmethod
    def all(world_size: int, num_shards: int) -> Readers:
        """Return that every rank sees every shard, in one place."""
        return Readers((0,) * world_size, (range(world_size),) * num_shards)

    def of_disk(self, disk: int) -> Owners:
        """Return the ranks that see a disk."""
        if not any(self.disks):
            return range(len(self.disks))
        return tuple(rank for rank, of in enumerate(self.disks) if of == disk)


class _Seen(TypedDict):
    """What one rank knows of a round's blocks, by their places in the round."""

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
            first = min(verdicts)
            number, block = places[first]
            name = manifest.shards[number]
            digest = wrong_block(manifest.files[name], block, manifest.grain, verdicts[first])
            raise damaged(path, name, digest)


def check_whole_files(ranks: CheckpointWorld, path: Path, manifest: Manifest) -> None:
    """Verify a checkpoint of version 1, whose files have one hash each: every rank reads some. Collective."""
    names = sorted(manifest.shards, key=lambda name: (-manifest.files[name].bytes, name))
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
    """Return the leaves' hashes of copies of blocks that no rank could judge, and the leaves (block's place
    in the round, leaf) that nobody has read, by the ranks that may read them.
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
    """Return this rank's run of the unread leaves; those of ranks on one disk are alike in length."""
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
