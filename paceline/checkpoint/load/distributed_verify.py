"""Verify a checkpoint over all ranks: what they read is known, what nobody read is shared out. No torch.

Verdicts are gathered: a damaged block that one rank saw is the same error on all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypedDict

from paceline.checkpoint.collective import CheckpointWorld, together
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
    for places in _rounds(reads):
        seen = together(ranks, partial(_seen, reads, places), path, _UNREAD)
        known, wanted = _merged(reads, places, seen, readers)
        mine = _share(wanted, ranks.rank)
        more = together(ranks, partial(_read_rest, reads, places, mine), path, _UNREAD)
        verdicts = {int(i): found for one in seen for i, found in one["wrong"].items()}
        for rank, one in enumerate(more):
            for i, leaves in one.items():
                known[int(i), readers.disks[rank]] |= _decoded(leaves)
        for (place, _), of_copy in known.items():
            if found := reads.verdict(*places[place], of_copy):
                verdicts.setdefault(place, found)
        if verdicts:
            first = min(verdicts)
            number, block = places[first]
            name = manifest.shards[number]
            found = wrong_block(manifest.files[name], block, manifest.grain, verdicts[first])
            raise damaged(path, name, found)


def check_whole_files(ranks: CheckpointWorld, path: Path, manifest: Manifest) -> None:
    """Verify a checkpoint of version 1, whose files have one hash each: every rank reads some. Collective."""
    names = sorted(manifest.shards, key=lambda name: (-manifest.files[name].bytes, name))
    mine = names[ranks.rank :: ranks.world_size]

    def work() -> bool:
        for name in mine:
            with open_part(path, name) as file:
                verify_open(file, manifest.files[name], path, name)
        return True

    together(ranks, work, path, _UNREAD)


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
        known = reads.known(number, block)
        verdict = reads.verdict(number, block, known)
        if verdict == "":
            seen["good"].append(i)
        elif verdict:
            seen["wrong"][str(i)] = verdict
        elif known:
            seen["parts"][str(i)] = _encoded(known)
    return seen


def _merged(
    reads: HashedReads, places: list[tuple[int, int]], seen: list[_Seen], readers: Readers
) -> tuple[_Known, dict[Owners, list[tuple[int, int]]]]:
    """Return the leaves' hashes of copies of blocks that no rank could judge, and the leaves (block's place
    in the round, leaf) that nobody has read, by the ranks that may read them.
    """
    disks = readers.disks
    judged: set[tuple[int, int]] = set()
    for one, disk in zip(seen, disks, strict=True):
        judged |= {(i, disk) for i in one["good"]} | {(int(i), disk) for i in one["wrong"]}
    known: _Known = {}
    for one, disk in zip(seen, disks, strict=True):
        for i, leaves in one["parts"].items():
            if (int(i), disk) not in judged:
                known.setdefault((int(i), disk), {}).update(_decoded(leaves))
    touched = {i for i, _ in (*judged, *known)}
    unread = [i for i in range(len(places)) if i not in touched]
    known |= {(i, disks[readers.owners[places[i][0]][0]]): {} for i in unread}
    wanted: dict[Owners, list[tuple[int, int]]] = {}
    of_disk = {disk: wanted.setdefault(readers.of_disk(disk), []) for disk in {of for _, of in known}}
    for place, disk in sorted(known):
        number, block = places[place]
        leaves_of = reads.grain.leaves(block, reads.files.sizes[number])
        of_disk[disk] += [(place, leaf) for leaf in leaves_of if leaf not in known[place, disk]]
    return known, wanted


def _share(wanted: Mapping[Owners, list[tuple[int, int]]], rank: int) -> list[tuple[int, int]]:
    """Return this rank's run of the unread leaves; those of ranks on one disk are alike in length."""
    for ranks, leaves in wanted.items():
        if rank in ranks:
            first, last = (
                len(leaves) * at // len(ranks) for at in (ranks.index(rank), ranks.index(rank) + 1)
            )
            return leaves[first:last]
    return []


def _read_rest(
    reads: HashedReads, places: list[tuple[int, int]], mine: list[tuple[int, int]]
) -> dict[str, dict[str, str]]:
    """Read and hash unread leaves; return their hashes by block and leaf."""
    at = 0
    while at < len(mine):
        i, first = mine[at]
        number, last = places[i][0], first
        while at + 1 < len(mine) and places[mine[at + 1][0]][0] == number and mine[at + 1][1] == last + 1:
            at, last = at + 1, last + 1
        reads.hash_leaves(number, range(first, last + 1))
        at += 1
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
