"""Publish a checkpoint on the disks of several nodes: rank 0's rename comes last and is the commit point.

A checkpoint exists once every file of one manifest is on some disk under the checkpoint's name. Rank 0's disk
has some of them (the run's state). So a crash before its rename leaves the earlier checkpoint, and a crash
after it the new one. After the commit nothing is undone, whatever fails.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypedDict, TypeVar

from paceline.checkpoint import codes
from paceline.checkpoint.collective import CheckpointWorld, on_all_ranks
from paceline.checkpoint.format.block_hashes import BlockSizes
from paceline.checkpoint.format.durable_files import CrashPoint, need_space, replace_text, sync_folder
from paceline.checkpoint.format.verify_files import aside_name, leftover_hints, unfinished
from paceline.checkpoint.node_local.inventory import DiskPart, Survey, parts_in
from paceline.checkpoint.node_local.shared_disks import Disks
from paceline.checkpoint.save.retention import (
    RetentionRule,
    discard,
    is_being_read,
    last_verified,
    manifest_digest,
    noting_errors,
)
from paceline.checkpoint.save.staging import RankFiles, Stage, manifest_of
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError
from paceline.core.rundir import RunDir

T = TypeVar("T")


class _Begun(TypedDict):
    """A rank's first message: a leader sends its disk's contents, rank 0 also the save's nonce and time."""

    parts: list[DiskPart]
    nonce: str
    created: float


class _AfterCommit(TypedDict):
    """A leader's message after the commit: checkpoints being read on its disk; from rank 0, those to keep."""

    read: list[str]
    kept: list[str]


class NodesPublisher:
    """Publishes the checkpoints of a run whose ranks see several disks. Methods are collective unless stated
    otherwise; rank 0 decides, and all ranks follow.
    """

    def __init__(
        self,
        run: RunDir,
        world: CheckpointWorld,
        disks: Disks,
        rule: RetentionRule,
        crash: CrashPoint,
        grain: BlockSizes,
        notes: list[Diagnostic],
    ) -> None:
        self._run, self._world, self._disks = run, world, disks
        self._rule, self._crash, self._grain, self._notes = rule, crash, grain, notes
        self._leads = disks.leads(world.rank)
        self._folder = run.checkpoints
        self._survey = Survey({})
        self._created = 0.0
        self._renaming = False
        self._may_be_committed = False

    def open(self, step: int, sizes: Sequence[int]) -> Stage:
        """Open a staging folder of the same name on each disk, for files of ``sizes`` by rank.

        Leftovers of interrupted saves are removed first. Raises CheckpointError.
        """
        first = self._world.rank == 0
        begun = self._together(
            lambda: _Begun(
                parts=parts_in(self._folder) if self._leads else [],
                nonce=os.urandom(6).hex() if first else "",
                created=time.time() if first else 0.0,
            )
        )
        self._survey = Survey(
            {first_rank: begun[first_rank]["parts"] for first_rank in sorted({*self._disks.leaders})}
        )
        nonce, self._created, self._renaming = begun[0]["nonce"], begun[0]["created"], False
        self._may_be_committed = False
        final = self._run.checkpoint(step)
        folder = self._folder / aside_name("staging", final.name, nonce)
        stage = Stage(step, nonce, self._survey.newest_sequence + 1, folder, final)

        def make() -> None:
            if self._leads:
                self._clear()
                need_space(self._folder, sum(sizes[rank] for rank in self._disks.ranks(self._world.rank)))
                os.mkdir(folder)
                self._crash("staging_made")

        self._together(make)
        return stage

    def publish(self, stage: Stage, written: list[RankFiles], protected: str | None) -> None:
        """After all ranks agreed: rename the folders into view, rank 0's last; then remove old checkpoints.

        Uses rank 0's ``protected``. Raises the same CheckpointError on all ranks, which then all call
        ``undo``.
        """
        first = self._world.rank == 0
        manifest = manifest_of(
            stage.step, stage.sequence, self._world.world_size, self._created, written, self._grain
        )

        def prepare() -> str:
            if not self._leads:
                return ""
            self._crash("agreed")
            stage.seal(manifest, self._crash)
            return manifest_digest(stage.folder) or ""

        digests = self._together(prepare)
        if len({digests[first_rank] for first_rank in self._disks.leaders}) != 1:
            raise CheckpointError(
                codes.CHECKPOINT_SAVE_FAILED(
                    "the nodes wrote different manifests; earlier checkpoints are unchanged",
                    str(self._folder),
                    ", ".join(
                        f"rank {first_rank}: {digests[first_rank][:12]}"
                        for first_rank in {*self._disks.leaders}
                    ),
                )
            )
        # Only once all are sealed: what a kill leaves then shows that it was not committed (``interrupted``)
        # All disks but rank 0's: until its rename the checkpoint is not committed.
        self._together(lambda: self._rename(stage) if self._leads and not first else None)
        self._commit(stage)
        self._crash("published")
        self._prune(stage, self._together(lambda: self._after(stage, protected)))

    def undo(self, stage: Stage) -> None:
        """Undo this rank's part of a save that failed before the commit, with an error that all ranks agreed
        on. Not collective.
        """
        if self._leads and not self._may_be_committed:
            with suppress(OSError):
                stage.undo(renamed=self._renaming and not stage.folder.is_dir())

    def _commit(self, stage: Stage) -> None:
        """Rename rank 0's folder. After that no error undoes anything on any disk. The step's earlier
        checkpoint is kept until the new one is durable everywhere.
        """
        late: list[Exception] = []

        def commit() -> None:
            if self._world.rank != 0:
                return
            try:
                self._rename(stage)
            # The rename may have happened before the error (its fsync failed): then the save counts, and
            # the error is raised once all have followed.
            except Exception as exc:
                if stage.folder.is_dir():
                    raise
                late.append(exc)

        def durable() -> None:
            for exc in late:
                raise exc

        self._may_be_committed = True  # a gather that fails here does not tell
        try:
            self._together(commit)
        except CheckpointError:
            self._may_be_committed = False
            raise
        self._together(durable)

    def _rename(self, stage: Stage) -> None:
        self._renaming = True
        stage.rename(self._crash)
        sync_folder(self._folder)
        self._crash("renamed_durably")

    def _after(self, stage: Stage, protected: str | None) -> _AfterCommit:
        """Once the checkpoint is published: remove the checkpoint that it replaces, and mark it as the
        latest."""
        kept: list[str] = []
        reading: list[str] = []
        if self._leads:
            with noting_errors(self._notes, self._folder):
                stage.forget_old()
            with noting_errors(self._notes, self._run.latest):
                replace_text(self._run.latest, stage.final.name + "\n", self._crash)
            if self._rule.last is not None:
                mine = self._survey.folders(self._world.rank)
                for checkpoint in self._survey.whole:
                    folder = mine.get((checkpoint.name, checkpoint.digest))
                    if folder is not None and self._is_read(self._folder / folder):
                        reading.append(checkpoint.name)
        if self._world.rank == 0:
            kept = [*filter(None, (protected, last_verified(self._folder)))]
        return {"read": reading, "kept": kept}

    def _is_read(self, checkpoint: Path) -> bool:
        """Whether a process reads a checkpoint of this disk; True if unknown."""
        with noting_errors(self._notes, checkpoint):
            try:
                return is_being_read(checkpoint)
            except FileNotFoundError:
                return False
        return True

    def _prune(self, stage: Stage, ended: Sequence[_AfterCommit]) -> None:
        """Remove whole checkpoints that are not kept, on all disks. Each is renamed on all disks before any
        is removed, so that leftovers of a removal differ from those of a save.
        """
        if self._rule.last is None:
            return
        earlier = [checkpoint for checkpoint in self._survey.whole if checkpoint.name != stage.final.name]
        names = [*(checkpoint.name for checkpoint in earlier), stage.final.name]
        stay: Collection[str] = {
            stage.final.name,
            *self._rule.reasons(names, None, None),
            *(name for checkpoint in ended for name in (*checkpoint["read"], *checkpoint["kept"])),
        }
        gone = [checkpoint for checkpoint in earlier if checkpoint.name not in stay]
        if not gone:
            return
        mine = self._survey.folders(self._world.rank) if self._leads else {}
        aside = []

        def put_aside() -> None:
            with noting_errors(self._notes, self._folder):
                for checkpoint in gone:
                    path = self._folder / mine.get((checkpoint.name, checkpoint.digest), ".none")
                    if path.is_dir() and not path.is_symlink():
                        trash = self._folder / aside_name("trash", checkpoint.name)
                        os.rename(path, trash)
                        aside.append(trash)
                        self._crash("pruned_aside")
                if aside:
                    sync_folder(self._folder)

        self._together(put_aside)
        for trash in aside:
            discard(trash)

    def _clear(self) -> None:
        """Remove leftovers of interrupted saves on this rank's disk."""
        for left in unfinished(self._folder):
            discard(left)
        for name in self._survey.needless(self._world.rank):
            discard(self._folder / name)
        for hint in leftover_hints(self._folder):
            hint.unlink(missing_ok=True)

    def _together(self, work: Callable[[], T]) -> list[T]:
        return on_all_ranks(self._world, work, self._folder, "the checkpoint could not be written")
