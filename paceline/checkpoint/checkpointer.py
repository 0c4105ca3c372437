"""Publishing a checkpoint (contract 5): stage, write, fsync, hash, agree, manifest, rename, ``latest``.

An asynchronous save takes a snapshot while the loop waits, and a thread does the rest.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn, TypedDict, TypeVar

import torch
from torch import Tensor

from paceline.checkpoint import codes
from paceline.checkpoint.collective import CheckpointWorld, on_all_ranks
from paceline.checkpoint.format.block_hashes import BlockSizes
from paceline.checkpoint.format.durable_files import CrashPoint, make_folder, never, replace_text, sync_folder
from paceline.checkpoint.format.safetensors_file import TensorEntry, in_order, starts_of
from paceline.checkpoint.format.verify_files import CheckpointFolder, read_hint
from paceline.checkpoint.node_local.publish import NodesPublisher
from paceline.checkpoint.node_local.shared_disks import Disks
from paceline.checkpoint.save.retention import RetentionRule, discard, noting_errors, prune
from paceline.checkpoint.save.staging import (
    Contents,
    RankFiles,
    Stage,
    contents_of,
    manifest_of,
    open_stage,
)
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError
from paceline.core.json_types import Json
from paceline.core.rundir import RunDir
from paceline.core.units import human_bytes
from paceline.plan.hardware.device_kinds import kind_of
from paceline.protocols.shard import Shard
from paceline.runtime.device.device import synchronize

T = TypeVar("T")


@dataclass(frozen=True)
class SaveCost:
    """The cost of a save: wall seconds on this rank, bytes of all ranks' files."""

    seconds: float
    num_bytes: int


class _Opened(TypedDict):
    """Rank 0's message about a new staging folder."""

    folder: str
    nonce: str
    sequence: int


class Checkpointer:
    """Save checkpoints of one run; keep the newest ``keep`` (None: all), each whose step is a multiple of
    ``every``, and the protected one.

    ``disks``: the ranks that share each run directory (None: all share one). ``crash`` is called with the
    name of each point where a kill can happen; tests raise there.
    """

    def __init__(
        self,
        run: RunDir,
        world: CheckpointWorld,
        keep: int | None = None,
        *,
        every: int | None = None,
        disks: Disks | None = None,
        crash: CrashPoint = never,
        grain: BlockSizes = BlockSizes(),  # noqa: B008 (frozen)
    ) -> None:
        if keep is not None and keep < 1:
            raise ValueError("keep must be at least 1")
        self._run, self._world = run, world
        self._rule = RetentionRule(keep, every)
        self._crash, self._grain = crash, grain
        self._best = run.checkpoints / "best"
        self._protected = read_hint(self._best)
        self._notes: list[Diagnostic] = []
        self._disks = disks or Disks.one(world.world_size)
        self._nodes = (
            None
            if self._disks.are_one
            else NodesPublisher(run, world, self._disks, self._rule, crash, grain, self._notes)
        )
        self.last: SaveCost | None = None

    def save(
        self, step: int, shards: Iterable[Shard], state: Mapping[str, Json], files: Mapping[str, bytes]
    ) -> Path:
        """Publish a checkpoint after ``step`` finished steps. Collective.

        Every rank passes its own shards (possibly none); ``state`` and ``files`` are rank 0's. On return the
        checkpoint is complete and durable. Raises the same CheckpointError on every rank if any rank fails
        (the error of the first failing rank). Staged files are then removed; published checkpoints stay as
        they are. A lost rank raises another error; the next save removes its leftovers. A published
        checkpoint stays, whatever fails later.
        """
        return self.publish(step, lambda: contents_of(self._world.rank, shards, state, files))

    def publish(self, step: int, take: Callable[[], Contents]) -> Path:
        """Save the result of ``take`` on each rank; its error counts as an error of the save."""
        began = time.perf_counter()
        taken: list[Contents] = []

        def measure() -> int:
            if self._disks.leads(self._world.rank):
                make_folder(self._run.checkpoints)
            taken.append(take())
            return taken[0].num_bytes

        sizes = self._together(measure)
        rank, world_size, nodes = self._world.rank, self._world.world_size, self._nodes
        earlier: list[CheckpointFolder] = []
        stage = self._opened(step, sum(sizes), earlier) if nodes is None else nodes.open(step, sizes)
        try:
            written = self._together(lambda: stage.fill(taken[0], rank, world_size, self._crash, self._grain))
            if nodes is None:
                self._together(lambda: self._publish(stage, written, earlier) if rank == 0 else None)
            else:
                nodes.publish(stage, written, self._protected)
        except CheckpointError:  # all ranks have it
            if nodes is not None:
                nodes.undo(stage)
            elif rank == 0:
                discard(stage.folder)
            raise
        except Exception:  # of this rank alone, as where another has died: the others may have committed
            if nodes is None and rank == 0:  # a simulated kill (BaseException) leaves its files, as kill -9
                discard(stage.folder)
            raise
        total = sum(file["bytes"] for of_rank in written for file in of_rank["files"].values())
        self.last = SaveCost(time.perf_counter() - began, total)
        return stage.final

    def protect(self, step: int | None) -> None:
        """Never prune the checkpoint of ``step`` (the best so far, maybe not saved yet); None clears it."""
        name = self._run.checkpoint(step).name if step is not None else None
        if name == self._protected:
            return
        self._protected = name
        if self._disks.leads(self._world.rank):
            with noting_errors(self._notes, self._best):
                if name is None:
                    self._best.unlink(missing_ok=True)
                else:
                    make_folder(self._run.checkpoints)
                    replace_text(self._best, name + "\n")

    def take_notes(self) -> list[Diagnostic]:
        """Return each warning once: a hint not written, an old checkpoint not removed."""
        notes = self._notes[:]
        self._notes.clear()
        return notes

    def _together(self, work: Callable[[], T]) -> list[T]:
        """Run ``work`` on all ranks, return all results; an error on one is raised on all. Collective."""
        return on_all_ranks(self._world, work, self._run.checkpoints, "the checkpoint could not be written")

    def _opened(self, step: int, num_bytes: int, earlier: list[CheckpointFolder]) -> Stage:
        """Return the staging folder that rank 0 opens; ``earlier`` gets the existing checkpoints."""
        final = self._run.checkpoint(step)

        def open_it() -> _Opened | None:
            if self._world.rank != 0:
                return None
            stage, there = open_stage(final, step, num_bytes, self._crash)
            earlier.extend(there)
            return {"folder": stage.folder.name, "nonce": stage.nonce, "sequence": stage.sequence}

        opened = self._together(open_it)[0]
        assert opened is not None, "rank 0 opens"
        folder = self._run.checkpoints / opened["folder"]
        return Stage(step, opened["nonce"], opened["sequence"], folder, final)

    def _publish(self, stage: Stage, written: list[RankFiles], scanned: list[CheckpointFolder]) -> None:
        """On rank 0, after all ranks agreed: write the manifest, then rename the folder into view."""
        manifest = manifest_of(
            stage.step, stage.sequence, self._world.world_size, time.time(), written, self._grain
        )
        self._crash("agreed")
        stage.seal(manifest, self._crash)
        stage.rename(self._crash)
        stage.forget_old()
        sync_folder(self._run.checkpoints)
        # The rename is durable once its folder is: only then may old checkpoints go.
        self._crash("published")
        with noting_errors(self._notes, self._run.latest):
            replace_text(self._run.latest, stage.final.name + "\n", self._crash)
        with noting_errors(self._notes, self._run.checkpoints):
            published = CheckpointFolder(stage.final, stage.final.name, manifest, None)
            complete = (
                checkpoint
                for checkpoint in scanned
                if checkpoint.problem is None and checkpoint.name != published.name
            )
            kept = {stage.final.name, *([self._protected] if self._protected else [])}
            prune([*complete, published], self._rule, kept, self._run.checkpoints, self._crash)


@dataclass(frozen=True)
class AsyncSaveResult:
    """A durable checkpoint: ``cost`` of the save, and the seconds for which this rank's loop waited."""

    step: int
    path: Path
    cost: SaveCost
    waited: float


class AsyncCheckpointer:
    """Hash and write checkpoints in a thread, one at a time.

    ``checkpointer`` must exchange values with other ranks without collectives
    (``background_exchange.StoreRanks``), since a save runs beside training's own collectives.
    """

    def __init__(self, checkpointer: Checkpointer, ranks: CheckpointWorld, device: torch.device) -> None:
        self._checkpointer = checkpointer
        self._rank = ranks.rank
        self._memory = SnapshotMemory(device)
        self._running: _SaveThread | None = None
        self._notes: list[Diagnostic] = []

    @property
    def is_running(self) -> bool:
        """Whether a save was started and not yet ended by ``end``; equal on all ranks."""
        return self._running is not None

    @property
    def is_working(self) -> bool:
        """Whether this rank's thread is still at work."""
        return self._running is not None and self._running.is_alive()

    def start(
        self, step: int, shards: Iterable[Shard], state: Mapping[str, Json], files: Mapping[str, bytes]
    ) -> None:
        """Take a snapshot and start to save it. Collective; the previous save must have ended.

        An error on this rank is an error of the save: ``end`` raises it on all ranks. Without memory for a
        snapshot this rank writes its part before it returns, and adds a note.
        """
        assert self._running is None, "one save at a time"
        began = time.perf_counter()
        take, copied = self._taken(shards, state, files)
        running = _SaveThread(step, lambda: self._checkpointer.publish(step, take))
        running.start()
        if not copied:
            running.join()
        running.waited = time.perf_counter() - began
        self._running = running

    def end(self, timeout: float | None = None) -> AsyncSaveResult | None:
        """Wait for the save and return it, or None if there was none, or it did not end within ``timeout``.

        Raises its error, the same on all ranks.
        """
        running = self._running
        if running is None:
            return None
        began = time.perf_counter()
        running.join(timeout)
        if running.is_alive():
            return None
        self._running = None
        if running.error is not None:
            raise running.error
        cost = self._checkpointer.last
        assert cost is not None and running.path is not None
        return AsyncSaveResult(running.step, running.path, cost, running.waited + time.perf_counter() - began)

    def take_notes(self) -> list[Diagnostic]:
        """Return each warning once."""
        notes, self._notes = [*self._notes, *self._checkpointer.take_notes()], []
        return notes

    def _taken(
        self, shards: Iterable[Shard], state: Mapping[str, Json], files: Mapping[str, bytes]
    ) -> tuple[Callable[[], Contents], bool]:
        """Return a function that returns the contents (or raises their error), and whether they are a
        copy."""
        try:
            contents = contents_of(self._rank, shards, state, files)
        except Exception as exc:
            return partial(_raise, exc), True
        try:
            snapshot = self._memory.copy(contents)
        except (MemoryError, OSError, RuntimeError) as exc:
            reason = (str(exc).strip() or type(exc).__name__).splitlines()[0]
            evidence = f"{human_bytes(contents.num_bytes)}: {reason}"[:300]
            self._notes.append(codes.CHECKPOINT_NO_SNAPSHOT(found=evidence))
            return lambda: contents, False
        return lambda: snapshot, True


class _SaveThread(threading.Thread):
    """The thread of one save; ``path`` or ``error`` is how it ended."""

    def __init__(self, step: int, work: Callable[[], Path]) -> None:
        super().__init__(name=f"paceline-save-{step}", daemon=True)
        self.step = step
        self.path: Path | None = None
        self.error: BaseException | None = None
        self.waited = 0.0
        self._work = work

    def run(self) -> None:
        try:
            self.path = self._work()
        except BaseException as exc:  # noqa: BLE001 - raised again by ``end``, in the loop
            self.error = exc


def _raise(error: Exception) -> NoReturn:
    raise error


class SnapshotMemory:
    """Host memory for one rank's tensors, in the order of its file. It is allocated and touched once; later
    snapshots that are not larger reuse it. It is pinned if that makes copies from ``device`` faster.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = torch.empty(0, dtype=torch.uint8)

    @property
    def num_bytes(self) -> int:
        """Bytes that it holds now."""
        return self._memory.numel()

    def copy(self, contents: Contents) -> Contents:
        """Return ``contents`` with every tensor copied here; the earlier snapshot is overwritten.

        Raises OSError, MemoryError or RuntimeError if there is no memory.
        """
        places = starts_of(contents.entries)
        ordered = in_order(contents.entries)
        need = sum(entry.num_bytes for entry in ordered)
        if self._memory.numel() < need:
            self._memory = torch.empty(0, dtype=torch.uint8)
            self._memory = allocate_host(need, pinned=kind_of(self._device.type).pins)
        copied = [self._copied(entry, places[entry.name][1]) for entry in ordered]
        synchronize(self._device)
        return replace(contents, entries=copied)

    def _copied(self, entry: TensorEntry, start: int) -> TensorEntry:
        copy = self._memory[start : start + entry.num_bytes].view(entry.dtype).view(entry.shape)
        copy.copy_(entry.load().detach(), non_blocking=True)
        return replace(entry, load=lambda: copy)


def allocate_host(num_bytes: int, *, pinned: bool) -> Tensor:
    """Return uint8 [num_bytes], outside of the memory pool of training."""
    if pinned:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
    memory = mmap.mmap(-1, num_bytes)
    with contextlib.suppress(OSError, AttributeError):  # a page fault for 2 MiB in place of 4 KiB
        # mmap, not malloc: the allocator of training would keep or split the memory.
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
