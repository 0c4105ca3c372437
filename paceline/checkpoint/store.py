"""Publishing a checkpoint (contract 5): stage, write, fsync, hash, agree, manifest, rename, ``latest``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypedDict, TypeVar

from paceline.checkpoint import codes
from paceline.checkpoint.blocks import Grain
from paceline.checkpoint.disk import CrashPoint, make_folder, never, replace_text, sync_folder, write_fresh
from paceline.checkpoint.layout import (
    leftover_hints,
    leftovers,
    read_hint,
    replaced_name,
    scan,
    shard_name,
    staging_name,
)
from paceline.checkpoint.manifest_format import (
    HF_FOLDER,
    MANIFEST,
    STATE,
    FileEntry,
    Manifest,
    is_safe_name,
    shards_of,
)
from paceline.checkpoint.retain import discard, prune
from paceline.checkpoint.strictjson import dump_object
from paceline.checkpoint.tensorfile import file_bytes, write_tensors
from paceline.checkpoint.together import CheckpointWorld, together
from paceline.checkpoint.written import Written, entries_of, index_of, places_of
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import CheckpointError
from paceline.core.json_types import Json
from paceline.core.rundir import RunDir
from paceline.core.units import human_bytes
from paceline.protocols.shard import Shard

T = TypeVar("T")


@dataclass(frozen=True)
class Saved:
    """The cost of the last save: wall seconds on this rank, bytes of all ranks' files."""

    seconds: float
    num_bytes: int


class _Opened(TypedDict):
    """What rank 0 says of a fresh staging folder."""

    folder: str
    nonce: str
    sequence: int


@dataclass(frozen=True)
class _StagedSave:
    """The staging folder of one save, the same on every rank."""

    step: int
    nonce: str
    sequence: int
    folder: Path


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
        self._keep = keep
        self._every = every
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
        began = time.perf_counter()
        opened = self._together(lambda: self._open_stage(step))[0]
        assert opened is not None, "rank 0 opens"
        stage = _StagedSave(
            step, opened["nonce"], opened["sequence"], self._run.checkpoints / opened["folder"]
        )
        try:
            written = self._together(lambda: self._write(stage, shards, state, files))
            self._together(lambda: self._publish(stage, written) if self._world.rank == 0 else None)
        except Exception:  # a simulated kill (BaseException) leaves its files, as kill -9 does
            if self._world.rank == 0:
                discard(stage.folder)
            raise
        total = sum(file["bytes"] for of_rank in written for file in of_rank["files"].values())
        self.last = Saved(time.perf_counter() - began, total)
        return self._run.checkpoint(step)

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

    def _open_stage(self, step: int) -> _Opened | None:
        """On rank 0: remove leftovers of interrupted saves, make a folder. The run's lock excludes others."""
        if self._world.rank != 0:
            return None
        folder = self._run.checkpoints
        make_folder(folder)
        for left in leftovers(folder):
            discard(left)
        for hint in leftover_hints(folder):
            hint.unlink(missing_ok=True)
        newest = max((f.age_key[0] for f in scan(folder)), default=0)
        nonce = os.urandom(6).hex()
        name = staging_name(self._run.checkpoint(step).name, nonce)
        os.mkdir(folder / name)
        self._crash("staging_made")
        return {"folder": name, "nonce": nonce, "sequence": max(newest, 0) + 1}

    def _write(
        self,
        stage: _StagedSave,
        shards: Iterable[Shard],
        state: Mapping[str, Json],
        files: Mapping[str, bytes],
    ) -> Written:
        """Write this rank's files into the staging folder; return entries, and where tensors lie."""
        mine = list(shards)  # references only: its collectives end before any disk error
        if not stage.folder.is_dir():
            raise CheckpointError(_not_shared(stage.folder))
        entries, metadata = entries_of(mine)
        side = (
            {f"{HF_FOLDER}/{name}": content for name, content in files.items()}
            if self._world.rank == 0
            else {}
        )
        if self._world.rank == 0:
            side[STATE] = dump_object(state, STATE)
        need_space(stage.folder, file_bytes(entries, metadata) + sum(map(len, side.values())))
        written: dict[str, FileEntry] = {}
        if entries:
            name = shard_name(self._world.rank, self._world.world_size)
            written[name] = write_tensors(stage.folder / name, entries, metadata, self._crash, self._grain)
        if any(name.startswith(f"{HF_FOLDER}/") for name in side):
            os.mkdir(stage.folder / HF_FOLDER)
        for name, content in side.items():
            if not is_safe_name(name):
                raise CheckpointError(
                    codes.CHECKPOINT_FILE_NAME("a side file needs a plain file name", found=name)
                )
            written[name] = write_fresh(stage.folder / name, [content])
        self._crash("files_written")
        return {
            "files": {
                name: {"bytes": e.bytes, "sha256": e.sha256, "data": e.data, "blocks": list(e.blocks)}
                for name, e in written.items()
            },
            "tensors": places_of(mine, entries),
        }

    def _publish(self, stage: _StagedSave, written: list[Written]) -> None:
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
        self._rename(stage)
        sync_folder(self._run.checkpoints)
        self._crash("published")
        with _Noted(self._notes, self._run.latest):
            replace_text(self._run.latest, self._run.checkpoint(stage.step).name + "\n", self._crash)
        with _Noted(self._notes, self._run.checkpoints):
            kept = {self._run.checkpoint(stage.step).name, *([self._protected] if self._protected else [])}
            prune(self._run.checkpoints, self._keep, kept, self._crash, self._every)

    def _rename(self, stage: _StagedSave) -> None:
        """Rename the staging folder to its final name; an older one of that step stays usable until then."""
        final = self._run.checkpoint(stage.step)
        aside = final.with_name(replaced_name(final.name, stage.nonce))
        replacing = os.path.lexists(final)
        if replacing:
            os.rename(final, aside)
            self._crash("old_aside")
        try:
            os.rename(stage.folder, final)
        except OSError:
            if replacing:
                os.rename(aside, final)
            raise
        self._crash("renamed")
        if replacing:
            sync_folder(final.parent)
            discard(aside)


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


def need_space(folder: Path, num_bytes: int) -> None:
    """Raise CheckpointError ``checkpoint.disk_full`` if ``folder``'s disk has under ``num_bytes`` free."""
    info = os.statvfs(folder)
    free = info.f_bavail * info.f_frsize
    if free < num_bytes:
        raise CheckpointError(
            codes.CHECKPOINT_DISK_FULL(
                "the disk has no room for this checkpoint; earlier checkpoints are unchanged",
                str(folder.parent),
                f"{human_bytes(free)} free, {human_bytes(num_bytes)} needed",
                "free disk space, lower training.save_total_limit, or set training.output_dir to"
                " another disk",
            )
        )


def _not_shared(folder: Path) -> Diagnostic:
    return codes.CHECKPOINT_NOT_SHARED(
        "this rank does not see the folder that rank 0 created: the nodes do not share this file system",
        str(folder),
        hint="set training.output_dir to a file system that all nodes share",
    )
