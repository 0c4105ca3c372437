"""Saves beside training: a snapshot is taken while the loop waits, the rest is done by a thread."""

from __future__ import annotations

import contextlib
import mmap
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from paceline.checkpoint import codes
from paceline.checkpoint.checkpointer import Checkpointer, SaveCost
from paceline.checkpoint.collective import CheckpointWorld
from paceline.checkpoint.format.safetensors_file import TensorEntry, in_order, starts_of
from paceline.checkpoint.save.staging import Contents, contents_of
from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import Json
from paceline.core.units import human_bytes
from paceline.plan.hardware.device_kinds import kind_of
from paceline.protocols.shard import Shard
from paceline.runtime.device.device import synchronize


@dataclass(frozen=True)
class AsyncSaveResult:
    """A durable checkpoint: ``cost`` of the save, and the seconds for which this rank's loop waited."""

    step: int
    path: Path
    cost: SaveCost
    waited: float


class AsyncCheckpointer:
    """Hash and write checkpoints in a thread, one at a time.

    ``checkpointer`` must meet the other ranks without collectives (``process_group.store_barrier``), since
    its saves run while training's own do.
    """

    def __init__(self, checkpointer: Checkpointer, ranks: CheckpointWorld, device: torch.device) -> None:
        self._checkpointer = checkpointer
        self._rank = ranks.rank
        self._memory = SnapshotMemory(device)
        self._running: _SaveThread | None = None
        self._notes: list[Diagnostic] = []

    @property
    def is_running(self) -> bool:
        """Whether a save was started whose end has not been asked for; alike on all ranks."""
        return self._running is not None

    @property
    def is_working(self) -> bool:
        """Whether this rank's thread is still at work."""
        return self._running is not None and self._running.is_alive()

    def start(
        self, step: int, shards: Iterable[Shard], state: Mapping[str, Json], files: Mapping[str, bytes]
    ) -> None:
        """Take a snapshot and begin to save it. Collective, as exports are; the last save has ended.

        An error on this rank is one of the save: ``end`` raises it, on all ranks. Without memory for a
        snapshot this rank writes its part before it returns, and says so.
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
        """Return what gives the contents (or raises why there are none), and whether they are a copy."""
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
    """Host memory for one rank's tensors, in the order of its file: allocated and touched once, and reused by
    each later snapshot that is not larger. Pinned where copies from ``device`` are faster then.
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
    """Return uint8 [num_bytes], apart from the memory that training allocates and frees."""
    if pinned:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
    memory = mmap.mmap(-1, num_bytes)
    with contextlib.suppress(OSError, AttributeError):  # a page fault for 2 MiB in place of 4 KiB
        # mmap, not malloc: the allocator of training would keep or split the memory.
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
