"""Find the ranks that see the same run directory, at the start and without configuration. No torch."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.checkpoint import codes
from paceline.checkpoint.collective import CheckpointWorld, on_all_ranks
from paceline.checkpoint.format.durable_files import replace_text
from paceline.core.diagnostics import Diagnostic
from paceline.core.files import read_run_file
from paceline.core.rundir import RunDir

_LOOKS, BETWEEN_SECONDS = 4, 0.25  # a network file system may show a new name late
_WHAT = "whether the nodes share the run directory cannot be found out"


@dataclass(frozen=True)
class Disks:
    """``leaders``: for each rank, the first rank that sees the same folder and does the work done once per
    disk."""

    leaders: tuple[int, ...]

    @staticmethod
    def one(world_size: int) -> Disks:
        """Return the disk that all ranks see."""
        return Disks((0,) * world_size)

    @property
    def are_one(self) -> bool:
        """Whether all ranks see one folder."""
        return not any(self.leaders)

    def leads(self, rank: int) -> bool:
        """Whether ``rank`` is the first of its disk."""
        return self.leaders[rank] == rank

    def ranks(self, first_rank: int) -> list[int]:
        """Return the ranks that see the disk of ``first_rank``."""
        return [rank for rank, of in enumerate(self.leaders) if of == first_rank]

    def remember(self, run: RunDir) -> None:
        """Record the number of disks, on the leader of each, for checks before the next start."""
        replace_text(run.disks, f"{len({*self.leaders})}\n")

    def notes(self, folder: Path) -> list[Diagnostic]:
        """Return the user's message for nodes that do not share ``folder``."""
        if self.are_one:
            return []
        groups = ", ".join(f"from rank {first_rank}" for first_rank in sorted({*self.leaders})[:16])
        return [codes.CHECKPOINT_APART(str(folder), f"{len({*self.leaders})} disks: {groups}")]


def were_one(run: RunDir) -> bool:
    """Whether all nodes saw this run directory at the last start with several nodes."""
    try:
        return read_run_file(run.disks).strip() == "1"
    except (OSError, ValueError):
        return False


def find_disks(ranks: CheckpointWorld, folder: Path, *, first_on_node: bool) -> Disks:
    """Find out which ranks see the same ``folder``, which rank 0 has made. Collective.

    Rank 0 writes a file there. If some rank does not see it, the first rank of each node without it also
    writes one. Raises the same CheckpointError on every rank.
    """
    rank = ranks.rank
    nonce = on_all_ranks(ranks, lambda: os.urandom(8).hex() if rank == 0 else "", folder, _WHAT)[0]
    name = f".disk-{nonce}"
    mine: list[Path] = []

    def write(path: Path, wanted: bool) -> bool:
        if wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(exist_ok=False)
            mine.append(path)
        return wanted

    try:
        on_all_ranks(ranks, lambda: write(folder / name, rank == 0), folder, _WHAT)
        seen = on_all_ranks(ranks, lambda: bool(_seen(folder, [name])), folder, _WHAT)
        if all(seen):
            return Disks.one(ranks.world_size)
        # Only where rank 0's file is missing: with one disk a start writes one file.
        apart = first_on_node and not seen[rank]
        wrote = on_all_ranks(ranks, lambda: write(folder / f"{name}-{rank}", apart), folder, _WHAT)
        # Who has written there itself looks once more: its client then asks for the folder anew.
        seen = on_all_ranks(ranks, lambda: seen[rank] or bool(_seen(folder, [name])), folder, _WHAT)
        if all(seen):
            return Disks.one(ranks.world_size)
        others = {f"{name}-{writer}": writer for writer, did in enumerate(wrote) if did}
        rows = on_all_ranks(ranks, lambda: [others[file] for file in _seen(folder, [*others])], folder, _WHAT)
    finally:
        for path in mine:
            path.unlink(missing_ok=True)
    return Disks(_leaders(seen, rows))


def _seen(folder: Path, names: Sequence[str]) -> list[str]:
    """Return the ``names`` that are in ``folder``; look again while one is missing. A listing may be
    outdated, so missing files are also opened.
    """
    for look in range(_LOOKS):
        there: set[str] = set()
        with suppress(FileNotFoundError, NotADirectoryError):
            os.listdir(folder.parent)  # a file server's client asks again for what it lists
            there = {*os.listdir(folder)}
        visible = [name for name in names if name in there or opens_path(folder / name)]
        if len(visible) == len(names):
            return visible
        if look + 1 < _LOOKS:
            time.sleep(BETWEEN_SECONDS)
    return visible


def opens_path(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _leaders(seen: Sequence[bool], rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return each rank's leader: two ranks share a disk if one sees the other's file."""
    first_rank = [0 if at_once else rank for rank, at_once in enumerate(seen)]

    def first(rank: int) -> int:
        while first_rank[rank] != rank:
            rank = first_rank[rank]
        return rank

    for rank, writers in enumerate(rows):
        for writer in writers:
            low, high = sorted((first(rank), first(writer)))
            first_rank[high] = low
    return tuple(first(rank) for rank in range(len(first_rank)))
