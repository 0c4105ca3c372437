"""What an emulated device is (name, capability, memory) and what was seen on it: waits, copies, kernels,
bytes.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import paceline
from paceline.plan.hardware.device_kinds import KINDS

_PACKAGE = str(Path(paceline.__file__).parent)


@dataclass
class Machine:
    """One process's view of its devices.

    kind        ``cuda``, ``xpu``, ``npu`` or ``mps``: what a tensor's ``device.type`` says
    capability  which kernels exist: CUDA's compute capability
    waits       places where the host waited for the device: reads of a result, results whose size depends on
                values, copies that are not asynchronous (what ``torch.cuda.set_sync_debug_mode`` reports)
    copies      asynchronous copies from the host by place; ``pageable``: those out of memory not pinned;
                ``beside``: those on a stream beside the kernels'
    kernels     operations by name that start at least one kernel (views and allocations start none)
    no_triton   why no kernel can be compiled there; empty if one can
    live, peak  bytes that tensors on the device hold, each storage once
    """

    kind: str = "cuda"
    capability: tuple[int, int] = (9, 0)
    count: int = 1
    index: int = 0
    memory_bytes: int = 80 << 30
    waits: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)
    pageable: Counter[str] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)
    no_triton: str = ""
    live: int = 0
    peak: int = 0
    graph: Any = None  # the one being captured
    beside: Counter[str] = field(default_factory=Counter)
    stream: object | None = None  # the current one; None: the default, on which kernels run
    sync_debug: str = "default"  # what ``torch.cuda.set_sync_debug_mode`` was given
    to_host: bool = False  # an explicit ``.cpu()`` or ``.to("cpu")`` is running
    _held: dict[int, int] = field(default_factory=dict)  # storage -> tensors that share it
    _watched: dict[int, weakref.ref[Tensor]] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        return torch.device(self.kind, self.index)

    def refuse_float64(self, dtype: torch.dtype, wire: bool = False) -> None:
        """Raise where a tensor of this dtype cannot be made on the device, or not sent by its backend."""
        if dtype not in (torch.float64, torch.complex128):
            return
        if not KINDS[self.kind].float64:
            raise TypeError(f"Cannot convert a {self.kind} tensor to {dtype}: the device has no float64")
        if wire and not KINDS[self.kind].wire_float64:
            raise RuntimeError(f"{KINDS[self.kind].backend} does not transfer {dtype}")

    def is_ours(self, device: object) -> bool:
        return isinstance(device, (str, torch.device)) and torch.device(device).type == self.kind

    def wait(self, what: str) -> None:
        """The host waits here."""
        if self.graph is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {what}")
        said = f"called a synchronizing CUDA operation: {what} {place()}"
        if self.sync_debug == "error":
            raise RuntimeError(said)
        if self.sync_debug == "warn":
            warnings.warn(said, stacklevel=2)
        self.waits[f"{what} {place()}"] += 1

    def refuse_waits(self, refuse: bool) -> None:
        """Whether a wait raises, as after ``torch.cuda.set_sync_debug_mode("error")``."""
        self.sync_debug = "error" if refuse else "default"

    def forget(self) -> None:
        """Count from zero; what lies on the device stays there."""
        for counter in (self.waits, self.copies, self.pageable, self.beside, self.kernels):
            counter.clear()
        self.peak = self.live

    def hold(self, numbers: Tensor) -> None:
        """Count a storage's bytes while a tensor refers to it."""
        storage = numbers.untyped_storage()
        key, size, name = storage._cdata, storage.nbytes(), id(numbers)
        if name in self._watched:
            return
        if self._held.get(key, 0) == 0:
            self.live += size
            self.peak = max(self.peak, self.live)
        self._held[key] = self._held.get(key, 0) + 1

        def gone(_: object) -> None:
            self._watched.pop(name, None)
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]
                self.live -= size

        self._watched[name] = weakref.ref(numbers, gone)


def place() -> str:
    """The innermost line of the package that is running: ``models/heads/lm_head.py:144``."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_PACKAGE):
            return f"{name[len(_PACKAGE) + 1 :]}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "elsewhere"
