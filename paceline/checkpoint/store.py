"""Publishing a checkpoint (contract 5): stage, write, fsync, hash, agree, manifest, rename, ``latest``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypedDict, TypeVar

from paceline.checkpoint import codes
from paceline.checkpoint.blocks import Grain
from paceline.checkpoint.contents import Contents, contents_of
from paceline.checkpoint.disk import CrashPoint, make_folder, never, replace_text, sync_folder, write_fresh
from paceline.checkpoint.layout import Found, read_hint
from paceline.checkpoint.manifest_format import HF_FOLDER, MANIFEST, FileEntry, Manifest, shards_of
from paceline.checkpoint.retain import RetentionRule, discard, prune
from paceline.checkpoint.staging import Stage, complete_after, open_stage
from paceline.checkpoint.together import CheckpointWorld, together
from paceline.checkpoint.written import Written, index_of
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.json_types import Json
from paceline.core.rundir import RunDir
from paceline.protocols.shard import Shard

T = TypeVar("T")


@dataclass(frozen=True)
class Saved:
    """The cost of a save: wall seconds on this rank, bytes of all ranks' files."""

    seconds: float
    num_bytes: int


class _Opened(TypedDict):
    """What rank 0 says of a fresh staging folder."""

    folder: str
    nonce: str
    sequence: int


class Checkpointer:
    """Save checkpoints of one run; keep the newest ``keep`` (None: all), each whose step is a multiple of
    ``every``, and the protected one.

    ``crash`` is called with the name of each point where a kill can happen; tests raise there.
    """

    def __init__(
        self,
        run: RunDir,
        world: CheckpointWorld,
        keep: int | None = None,
        *,
        every: int | None = None,
        crash: CrashPoint = never,
        grain: Grain = Grain(),  # noqa: B008 (frozen)
    ) -> None:
        if keep is not None and keep < 1:
            raise ValueError("keep must be at least 1")
        self._run = run
        self._world = world
        self._rule = RetentionRule(keep, every)
        self._crash = crash
        self._grain = grain
        self._best = run.checkpoints / "best"
        self._protected = read_hint(self._best)
        self._notes: list[Diagnostic] = []
        self.last: Saved | None = None

    def save(
        self, step: int, shards: Iterable[Shard], state: Mapping[str, Json], files: Mapping[str, bytes]
    ) -> Path:
        """Publish a checkpoint after ``step`` finished steps. Collective.

        Every rank passes its own shards (possibly none); ``state`` and ``files`` are rank 0's. On return the
        checkpoint is complete and durable. Raises the same CheckpointError on every rank if any rank fails
        (the error of the first failing rank); staged files are then removed, and published checkpoints are
        unchanged.
        """
        return self.publish(step, lambda: contents_of(self._world.rank, shards, state, files))

    def publish(self, step: int, take: Callable[[], Contents]) -> Path:
        """As ``save``, of what ``take`` returns on each rank; its error is one of the save."""
        began = time.perf_counter()
        taken: list[Contents] = []

        def measure() -> int:
            if self._world.rank == 0:
                make_folder(self._run.checkpoints)
            taken.append(take())
            return taken[0].num_bytes

        sizes = self._together(measure)
        found: list[Found] = []
        opened = self._together(lambda: self._open(step, sum(sizes), found))[0]
        assert opened is not None, "rank 0 opens"
        final = self._run.checkpoint(step)
        stage = Stage(
            step, opened["nonce"], opened["sequence"], self._run.checkpoints / opened["folder"], final
        )
        rank, world_size = self._world.rank, self._world.world_size
        try:
            written = self._together(lambda: stage.fill(taken[0], rank, world_size, self._crash, self._grain))
            self._together(lambda: self._publish(stage, written, found) if rank == 0 else None)
        except Exception:  # a simulated kill (BaseException) leaves its files, as kill -9 does
            if rank == 0:
                discard(stage.folder)
            raise
        total = sum(file["bytes"] for of_rank in written for file in of_rank["files"].values())
        self.last = Saved(time.perf_counter() - began, total)
        return final

    def protect(self, step: int | None) -> None:
        """Never prune the checkpoint of ``step`` (the best so far, maybe not saved yet); None clears it."""
        name = self._run.checkpoint(step).name if step is not None else None
        if name == self._protected:
            return
        self._protected = name
        if self._world.rank == 0:
            with _Noted(self._notes, self._best):
                if name is None:
                    self._best.unlink(missing_ok=True)
                else:
                    make_folder(self._run.checkpoints)
                    replace_text(self._best, name + "\n")

    def take_notes(self) -> list[Diagnostic]:
        """Return each warning once: a hint not written, an old checkpoint not removed."""
        notes, self._notes = self._notes, []
        return notes

    def _together(self, work: Callable[[], T]) -> list[T]:
        """Run ``work`` on all ranks, return all results; an error on one is raised on all. Collective."""
        return together(self._world, work, self._run.checkpoints, "the checkpoint could not be written")

    def _open(self, step: int, num_bytes: int, found: list[Found]) -> _Opened | None:
        """On rank 0: open a staging folder; ``found`` gets the checkpoints that are there."""
        if self._world.rank != 0:
            return None
        stage, there = open_stage(self._run.checkpoint(step), step, num_bytes, self._crash)
        found += there
        return {"folder": stage.folder.name, "nonce": stage.nonce, "sequence": stage.sequence}

    def _publish(self, stage: Stage, written: list[Written], found: list[Found]) -> None:
        """On rank 0, after all ranks agreed: write the manifest, then rename the folder into view."""
        files = {
            name: FileEntry(e["bytes"], e["sha256"], e["data"], tuple(e["blocks"]))
            for of_rank in written
            for name, e in of_rank["files"].items()
        }
        manifest = Manifest(
            stage.step,
            stage.sequence,
            self._world.world_size,
            time.time(),
            files,
            tensors=index_of(written, shards_of(files)),
            grain=self._grain,
        )
        self._crash("agreed")
        write_fresh(stage.folder / MANIFEST, [manifest.to_bytes()], self._crash)
        if (stage.folder / HF_FOLDER).is_dir():
            sync_folder(stage.folder / HF_FOLDER)
        sync_folder(stage.folder)
        self._crash("staging_synced")
        stage.rename(self._crash)
        sync_folder(self._run.checkpoints)
        self._crash("published")
        with _Noted(self._notes, self._run.latest):
            replace_text(self._run.latest, stage.final.name + "\n", self._crash)
        with _Noted(self._notes, self._run.checkpoints):
            complete = complete_after(found, Found(stage.final, stage.final.name, manifest, None))
            kept = {stage.final.name, *([self._protected] if self._protected else [])}
            prune(complete, self._rule, kept, self._run.checkpoints, self._crash)


class _Noted:
    """A context that turns an OSError into a note: the checkpoint is published, only housekeeping failed."""

    def __init__(self, notes: list[Diagnostic], where: Path) -> None:
        self._notes = notes
        self._where = where

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(exc, OSError):
            return False
        self._notes.append(
            codes.CHECKPOINT_HOUSEKEEPING(
                "the checkpoint is published, but a later operation failed",
                str(self._where),
                str(exc),
                severity=Severity.WARNING,
            )
        )
        return True
