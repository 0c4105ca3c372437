"""A copy in host memory of what a rank saves: training goes on while it is hashed and written."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from paceline.checkpoint.format.safetensors_file import TensorEntry, in_order, starts_of
from paceline.checkpoint.save.staging import Contents
from paceline.plan.hardware.device_kinds import kind_of
from paceline.runtime.device.device import synchronize


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
        place = self._memory[start : start + entry.num_bytes].view(entry.dtype).view(entry.shape)
        place.copy_(entry.load().detach(), non_blocking=True)
        return replace(entry, load=_given(place))


def allocate_host(num_bytes: int, *, pinned: bool) -> Tensor:
    """Return uint8 [num_bytes], apart from the memory that training allocates and frees."""
    if pinned:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
    memory = mmap.mmap(-1, num_bytes)
    with contextlib.suppress(OSError, AttributeError):  # a page fault for 2 MiB in place of 4 KiB
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def _given(tensor: Tensor) -> Callable[[], Tensor]:
    return lambda: tensor
