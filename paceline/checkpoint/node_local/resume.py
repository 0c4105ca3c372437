"""Find the newest checkpoint that is complete over the nodes' disks, and open it on each. No torch."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from paceline.checkpoint import codes
from paceline.checkpoint.collective import CheckpointWorld, on_all_ranks
from paceline.checkpoint.errors import incomplete, skipped
from paceline.checkpoint.format.durable_files import named_errors, sync_folder
from paceline.checkpoint.format.manifest import Manifest
from paceline.checkpoint.format.verify_files import (
    LATEST,
    aside_name,
    open_part,
    read_manifest,
    unfinished,
    verify_open,
)
from paceline.checkpoint.load.find_checkpoint import (
    checkpoint_location,
    find_checkpoint,
    save_never_ended,
)
from paceline.checkpoint.node_local.file_server import (
    PeerNode,
    SharedFiles,
    fetch_file,
    fetch_manifest,
    remove_unfinished,
)
from paceline.checkpoint.node_local.inventory import (
    CompleteCheckpoint,
    DiskPart,
    IncompleteCheckpoint,
    NodeInventory,
    Survey,
    begun_in,
    chosen_note,
    files_of,
    names_of,
    no_whole_one,
    parts_in,
    passed_over,
)
from paceline.checkpoint.node_local.shared_disks import Disks
from paceline.checkpoint.save.retention import discard, is_being_read
from paceline.config.registries.object_store_url import is_url
from paceline.config.sections.training_steps import AUTO_RESUME
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError
from paceline.core.rundir import RunDir

T = TypeVar("T")
_WHAT = "the checkpoint cannot be opened"
# Errors of a checkpoint, for which the one before it is taken; others are of a machine, and end the start.
_OF_THE_CHECKPOINT = frozenset(
    {codes.CHECKPOINT_DAMAGED.name, codes.CHECKPOINT_INCOMPLETE.name, codes.CHECKPOINT_MISPLACED.name}
)


@dataclass(frozen=True)
class NodeLocalCheckpoint:
    """A checkpoint opened by this rank: its folder on this disk receives the fetched files.

    ``holders``: file name → disks that have it; ``places``: disk leader → server address.
    """

    path: Path
    manifest: Manifest
    digest: str
    holders: Mapping[str, Sequence[int]]
    places: Mapping[int, PeerNode]
    disks: Disks
    key: bytes
    notes: list[Diagnostic]

    def fetch(self, name: str) -> None:
        """Fetch a file to this disk. Raises CheckpointError."""
        holders = [self.places[disk] for disk in self.holders[name] if disk in self.places]
        self.notes.extend(fetch_file(self.path, self.manifest, name, self.digest, holders, self.key))

    def owners(self, name: str) -> tuple[int, ...]:
        """Return the ranks of one disk that had the file from the start."""
        holders = self.holders[name]
        # By the name, so that all ranks agree without a message, and files spread over the holders.
        return tuple(self.disks.ranks(holders[sum(name.encode()) % len(holders)]))

    @property
    def disk_of_ranks(self) -> Sequence[int]:
        """By rank, the number of the disk that it sees."""
        return self.disks.leaders


class NodesResume:
    """Finds checkpoints over the disks of a run's ranks, and sends this disk's files to the other nodes.

    ``address``, ``secret``: of ``SharedFiles``. Methods are collective unless stated otherwise.
    """

    def __init__(
        self, ranks: CheckpointWorld, disks: Disks, address: Callable[[str], str], secret: bytes
    ) -> None:
        self._ranks, self._disks = ranks, disks
        self._disk = disks.leaders[ranks.rank]
        self._leads = disks.leads(ranks.rank)
        self._given = SharedFiles(ranks, self._leads, address, secret)
        self._damage: dict[tuple[str, str], CheckpointError] = {}
        self._last: tuple[tuple[str, str], Path] | None = None
        self.notes: list[Diagnostic] = []

    def find(
        self, where: str, run: RunDir, notes: list[Diagnostic], damaged: Mapping[Path, CheckpointError]
    ) -> NodeLocalCheckpoint | None:
        """Return the checkpoint for ``where`` (``checkpoint.load.find_checkpoint``); None for
        ``auto`` where no node has any.

        ``notes`` gets the skipped checkpoints. Raises CheckpointError, the same on all ranks.
        """
        if self._last is not None and self._last[1] in damaged:
            self._damage[self._last[0]] = damaged[self._last[1]]
        looks = self._together(lambda: self._look(where, run) if self._leads else None, run.checkpoints)
        of_disks = {disk: look for disk, look in enumerate(looks) if look is not None}
        survey = Survey({disk: look["parts"] for disk, look in of_disks.items()})
        if where in (LATEST, AUTO_RESUME):
            survey, removed = remove_interrupted(survey, of_disks, self._disk, self._ranks)
            notes += removed
        while usable := [
            newest for newest in survey.whole if (newest.name, newest.digest) not in self._damage
        ]:
            newest = usable[-1]
            self._refuse_newer(survey, newest.step)
            try:
                opened = self._opened(newest, self._folder(where, run, newest, of_disks))
            except CheckpointError as error:
                # A machine's error (a full disk, a lost node) must not make the run fall back by hours of
                # training.
                if error.diagnostics[0].code not in _OF_THE_CHECKPOINT:
                    raise
                self._damage[newest.name, newest.digest] = error
                continue
            self._last = ((newest.name, newest.digest), opened.path)
            skipped = [
                two for two in survey.lacking if two.step > newest.step and two.step not in survey.steps
            ]
            notes += self._passed_over(skipped, newest, of_disks)
            notes.append(chosen_note(newest, opened.path, len(of_disks)))
            return opened
        self._refuse_newer(survey, -1)
        if survey.lacking or self._damage:
            raise no_whole_one(
                self._named(survey.lacking, of_disks), [*self._damage.values()], of_disks, where, run
            )
        self._nothing(where, run, notes, sum(look["staged"] for look in of_disks.values()))
        return None

    def close(self) -> None:
        """Give no more files. Not collective; all ranks have read what they need."""
        self._given.close()

    def _look(self, where: str, run: RunDir) -> NodeInventory:
        folder, only = checkpoint_location(where, run)
        by_name = where in (LATEST, AUTO_RESUME) or is_url(where)  # else a path, which may differ by node
        parts: list[DiskPart] = parts_in(folder, None if only is None else (only,))
        return {
            "host": socket.gethostname(),
            "folder": str(folder),
            "relation": "" if by_name else os.path.relpath(folder, _absolute(where)),
            "parts": parts,
            "begun": begun_in(folder),
            "staged": len(unfinished(folder)),
        }

    def _folder(
        self, where: str, run: RunDir, checkpoint: CompleteCheckpoint, looks: Mapping[int, NodeInventory]
    ) -> Path:
        """Return the folder of checkpoints on this disk; a path is resolved on a node where it exists."""
        if self._disk in checkpoint.folders:
            return Path(looks[self._disk]["folder"])
        relation = looks[min(checkpoint.folders)]["relation"]
        return (
            Path(os.path.normpath(_absolute(where) / relation))
            if relation
            else checkpoint_location(where, run)[0]
        )

    def _refuse_newer(self, survey: Survey, step: int) -> None:
        """Raise the error of a checkpoint of a newer Paceline, of a later step than ``step``."""
        for checkpoint in survey.lacking:
            if (
                checkpoint.problem
                and checkpoint.step > step
                and checkpoint.problem.code == codes.CHECKPOINT_NEWER.name
            ):
                raise CheckpointError(checkpoint.problem)

    def _nothing(self, where: str, run: RunDir, notes: list[Diagnostic], staged: int) -> None:
        """Handle the case that no node has a checkpoint; rank 0 decides, as with one disk.

        Raises CheckpointError, also if rank 0 finds a checkpoint after all, since no run may start from step
        0 next to one.
        """

        def none_there() -> None:
            checkpoint = find_checkpoint(where, run, most_bytes=0) if self._ranks.rank == 0 else None
            if checkpoint is not None:
                raise CheckpointError(
                    codes.CHECKPOINT_INCOMPLETE(
                        "rank 0's disk has a checkpoint that was not there when the nodes looked for one",
                        where,
                        str(checkpoint),
                        "start again: nothing was changed",
                    )
                )

        self._together(none_there, run.checkpoints)
        if staged:
            notes.append(save_never_ended(run.checkpoints, staged))

    def _opened(self, checkpoint: CompleteCheckpoint, folder: Path) -> NodeLocalCheckpoint:
        """Make the checkpoint's folder on each disk, with the manifest and the files without tensors."""
        total = len(frozenset().union(*checkpoint.have.values()))
        disks = sorted({*self._disks.leaders})
        if any(len(checkpoint.have.get(disk, ())) < total for disk in disks):
            self._given.open(folder)
        if checkpoint.folders.get(self._disk) is not None:
            self._given.give(checkpoint.digest, folder / checkpoint.folders[self._disk])
        places = self._given.places
        givers = [places[disk] for disk in sorted(checkpoint.have) if disk in places]
        self._together(lambda: self._leads, folder)  # all disks that have it give it from here on

        def ready() -> str:
            return str(self._made_ready(checkpoint, folder, givers)) if self._leads else ""

        # The leader's answer: other ranks of the disk learn the folder's name from it.
        path = Path(self._together(ready, folder)[self._disk])
        self._given.give(checkpoint.digest, path)
        manifest = read_manifest(path)
        holders = {name: checkpoint.holders(number) for number, name in enumerate(files_of(manifest))}
        return NodeLocalCheckpoint(
            path, manifest, checkpoint.digest, holders, places, self._disks, self._given.key, self.notes
        )

    def _made_ready(self, checkpoint: CompleteCheckpoint, folder: Path, holders: Sequence[PeerNode]) -> Path:
        """Return the checkpoint's folder on this disk, with its manifest and its side files; make it."""
        if (name := checkpoint.folders.get(self._disk)) is not None:
            remove_unfinished(folder / name)
            self._bring_side_files(checkpoint, folder / name)
            return folder / name
        fresh = folder / aside_name("fetching", checkpoint.name)
        with named_errors(folder, _WHAT):
            fresh.mkdir(parents=True)
        try:
            fetch_manifest(fresh, checkpoint.digest, holders, self._given.key)
            self._bring_side_files(checkpoint, fresh)
            return _named(fresh, folder / checkpoint.name)
        except BaseException:
            discard(fresh)
            raise

    def _bring_side_files(self, checkpoint: CompleteCheckpoint, path: Path) -> None:
        """Download the files that every rank reads: all but tensors, and all of version 1, whose files have
        one hash each. Files that are here already are compared with their hashes.
        """
        manifest = read_manifest(path)
        for number, name in enumerate(files_of(manifest)):
            if name.endswith(".safetensors") and manifest.tensors is not None:
                continue
            if number in checkpoint.have.get(self._disk, ()):
                if not name.endswith(".safetensors"):
                    with open_part(path, name) as file:
                        verify_open(file, manifest.files[name], path, name)
                continue
            holders = [self._given.places[disk] for disk in checkpoint.holders(number)]
            self.notes += fetch_file(path, manifest, name, checkpoint.digest, holders, self._given.key)

    def _passed_over(
        self,
        lacking: Sequence[IncompleteCheckpoint],
        taken: CompleteCheckpoint,
        looks: Mapping[int, NodeInventory],
    ) -> list[Diagnostic]:
        """Report skipped newer checkpoints, with reasons."""
        warnings = [passed_over(checkpoint, why, taken) for checkpoint, why in self._named(lacking, looks)]
        for (name, digest), error in self._damage.items():
            checkpoint = IncompleteCheckpoint(name, digest, 0, (), error.diagnostics[0])
            warnings.append(passed_over(checkpoint, error.diagnostics[0].what, taken))
        return warnings

    def _named(
        self, lacking: Sequence[IncompleteCheckpoint], looks: Mapping[int, NodeInventory]
    ) -> list[tuple[IncompleteCheckpoint, str]]:
        """Return each checkpoint with its missing files' names, from a rank that has its manifest."""
        if not lacking:
            return []
        folder = Path(looks[self._disk]["folder"])
        mine = names_of(lacking, looks[self._disk], folder) if self._leads else {}
        answers = self._together(lambda: mine, folder)
        reasons = {digest: why for of_rank in answers for digest, why in of_rank.items()}
        return [
            (
                checkpoint,
                reasons.get(checkpoint.digest) or (checkpoint.problem.what if checkpoint.problem else ""),
            )
            for checkpoint in lacking
        ]

    def _together(self, work: Callable[[], T], where: Path) -> list[T]:
        return on_all_ranks(self._ranks, work, where, _WHAT)


def _absolute(where: str) -> Path:
    return Path(where).expanduser().absolute()


def _named(fresh: Path, final: Path) -> Path:
    """Rename a folder to the checkpoint's name. If another folder has it, use the name of a
    replacement. Raises CheckpointError.
    """
    if os.path.lexists(final):
        if not final.name.startswith("step-"):
            raise incomplete(final, "this node has another checkpoint under this name")
        final = final.with_name(aside_name("replaced", final.name))
    with named_errors(final.parent, _WHAT):
        os.rename(fresh, final)
        sync_folder(final.parent)
    return final


def remove_interrupted(
    survey: Survey, looks: Mapping[int, NodeInventory], disk: int, ranks: CheckpointWorld
) -> tuple[Survey, list[Diagnostic]]:
    """Remove, on each disk, the parts of checkpoints that were never committed; return the parts left, with a
    warning for each. Collective; ``disk`` is this rank's. Parts that are being read stay.
    """
    halves = survey.interrupted(part for look in looks.values() for part in look["begun"])
    if not halves:
        return survey, []
    folder, mine = Path(looks[disk]["folder"]), survey.folders(disk) if disk == ranks.rank else {}

    def remove() -> list[str]:
        parts = [
            mine[checkpoint.name, checkpoint.digest]
            for checkpoint in halves
            if (checkpoint.name, checkpoint.digest) in mine
        ]
        return [part for part in parts if _removed(folder / part)]

    gone = on_all_ranks(ranks, remove, folder, "what an interrupted save has left cannot be removed")
    parts = {
        other: [p for p in look["parts"] if p["folder"] not in gone[other]] for other, look in looks.items()
    }
    left = Survey(parts)
    return left, [_note(checkpoint, folder) for checkpoint in halves if checkpoint not in left.lacking]


def _removed(path: Path) -> bool:
    """Rename and remove a folder; False if a process reads it."""
    with suppress(OSError):
        if not path.is_symlink() and not is_being_read(path):
            trash = path.with_name(aside_name("trash", path.name))
            os.rename(path, trash)
            discard(trash)
            return True
    return False


def _note(checkpoint: IncompleteCheckpoint, folder: Path) -> Diagnostic:
    return skipped(
        checkpoint.name,
        "its save was interrupted before all nodes had it; what it left was removed",
        str(folder),
        "an earlier one is taken",
    )
