"""The device of this process: selection, memory, speed."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import PacelineError
from paceline.plan.hardware.device_files import triton_obstacle
from paceline.plan.hardware.device_kinds import CPU, CUDA, KINDS, UNDRIVEN, is_accelerator, kind_of
from paceline.runtime import codes


def pick_device(
    kind: str, local_rank: int, *, indices: Sequence[int] = (), alone: bool = False
) -> torch.device:
    """Return ``cpu``, this rank's own device of ``kind``, or for ``auto`` the accelerator if there is one.

    ``indices``: of the visible devices those that train, in the order of the local ranks (empty: all);
    ``alone``: a job manager shows each process a device of its own. Raises ``runtime.device`` if there is no
    such device for this rank.
    """
    import_problem = import_device_packages()
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if kind == "auto":
        # torch calls whatever it was built for the accelerator (cuda for ROCm too).
        kind = CPU.name if accelerator is None else accelerator.type
    if not is_accelerator(kind):
        return torch.device(CPU.name)
    if kind not in KINDS:
        what = (
            f"there is no device named '{kind}'"
            if kind not in UNDRIVEN
            else f"{UNDRIVEN[kind]} is not supported"
        )
        raise PacelineError(codes.RUNTIME_DEVICE(what, found=kind, hint=f"use {' or '.join(KINDS)}"))
    if accelerator is None or accelerator.type != kind:
        raise PacelineError(_missing(kind, import_problem or "torch sees no such device"))
    count = torch.accelerator.device_count()
    # One visible device for several local ranks: under ``alone`` each of them has its own, always number 0.
    places = tuple(indices) or (
        tuple(range(count)) if not (alone and count == 1) else (0,) * (local_rank + 1)
    )
    if local_rank >= len(places) or places[local_rank] >= count:
        raise PacelineError(
            codes.RUNTIME_DEVICE(
                f"there is no {KINDS[kind].label} device for local rank {local_rank}",
                found=f"{count} visible, {len(places)} of them used for training",
                hint=f"start at most {len(places)} processes on this node, or change {KINDS[kind].visible[0]}"
                if KINDS[kind].visible
                else f"start at most {len(places)} processes on this node",
            )
        )
    return torch.device(kind, places[local_rank])


def _missing(kind: str, why: str) -> Diagnostic:
    reason = why
    if kind == CUDA.name and torch.version.cuda is None and torch.version.hip is None:
        reason = "this torch is a CPU build"
    return codes.RUNTIME_DEVICE(
        f"the plan requires {KINDS[kind].label}, but this process has no {KINDS[kind].label} device",
        found=reason,
        hint=f"set use_cpu: true, or install a torch with {KINDS[kind].label}",
    )


def import_device_packages() -> str:
    """Import packages that add a device to torch (``torch_npu``); return why one could not be imported."""
    for kind in KINDS.values():
        if kind.package and importlib.util.find_spec(kind.package) is not None:
            try:
                importlib.import_module(kind.package)
            except Exception as exc:  # noqa: BLE001 - whatever a driver's package raises
                return f"{kind.package} cannot be imported: {type(exc).__name__}: {exc}"
    return ""


def sum_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype in which sums are kept on a device: float64, or float32 where that does not exist."""
    return torch.float64 if KINDS.get(device.type, CPU).float64 else torch.float32  # meta is no kind


def widened(values: torch.Tensor) -> torch.Tensor:
    """Return the same numbers in the dtype in which sums are kept on their device (``sum_dtype``)."""
    return values.to(sum_dtype(values.device))


def memory_bytes(device: torch.device) -> int:
    """Return this process's peak memory: VmHWM (resident set) on a CPU, else torch's allocated maximum."""
    if is_accelerator(device.type):
        return _allocated(device)
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # no /proc: macOS
    import resource
    import sys

    # Bytes on macOS, KiB elsewhere: the only unit that differs by platform.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reserved_bytes(device: torch.device) -> int | None:
    """Return the most that torch's allocator has reserved from the driver; None where none is counted."""
    module = torch.get_device_module(device) if is_accelerator(device.type) else None
    reserved = getattr(module, "max_memory_reserved", None)
    return int(reserved(device)) if reserved is not None else None


def device_name(device: torch.device) -> str:
    """Return the driver's name of an accelerator; the device type where there is none."""
    if not is_accelerator(device.type):
        return device.type
    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(name(device)) if name is not None else kind_of(device.type).label


def free_memory(device: torch.device) -> int | None:
    """Return an accelerator's free memory now, in bytes; None on a CPU or if it is unknown."""
    if not is_accelerator(device.type):
        return None
    try:
        return int(torch.accelerator.get_memory_info(device)[0])
    except (RuntimeError, AttributeError):
        return None


def _allocated(device: torch.device) -> int:
    peak = 0
    with contextlib.suppress(RuntimeError, AttributeError):
        peak = int(torch.accelerator.max_memory_allocated(device))
    # MPS has no statistics of its allocator: what is held now
    current = getattr(torch.get_device_module(device), "current_allocated_memory", None)
    return peak or (int(current()) if current is not None else 0)


def matmul_rate(device: torch.device, dtype: torch.dtype, seconds: float = 0.05) -> float:
    """Measure the FLOP/s of square matrix products in ``dtype``: the best of those that fit in ``seconds``.

    A product counts 2 n³ operations. A step's speed is given relative to it on a device without a data-sheet
    peak.
    """
    # large enough to fill an accelerator, small enough for a CPU core's share of 50 ms
    size = 8192 if is_accelerator(device.type) else 512
    left = torch.randn(size, size, device=device).to(dtype)
    right = torch.randn(size, size, device=device).to(dtype)
    out = left @ right  # warm-up: kernels are chosen and loaded
    synchronize(device)
    best, deadline = float("inf"), time.perf_counter() + seconds
    while True:
        started = time.perf_counter()
        # into the same memory: an allocation would be timed too
        torch.mm(left, right, out=out)
        synchronize(device)
        now = time.perf_counter()
        # The best of several: another process can only slow a product down.
        best = min(best, now - started)
        if now >= deadline:
            return 2.0 * size**3 / best


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all queued work; does nothing on a CPU."""
    if is_accelerator(device.type):
        torch.accelerator.synchronize(device)


def use_deterministic_kernels() -> None:
    """Make every operation of this process deterministic; an operation without a deterministic kernel raises
    RuntimeError with its name. ``launch.environment.device_variables`` sets the variables that libraries read
    before torch is imported.
    """
    torch.use_deterministic_algorithms(True)
    # Benchmarking picks a convolution by its time, so by chance.
    torch.backends.cudnn.benchmark = False


def device_capability(device: torch.device) -> float | None:
    """Return CUDA's compute capability (8.6); None for any other device, AMD's included, and for a device
    that does not exist, as fake tensors may name.
    """
    if device.type != CUDA.name or torch.version.hip is not None:
        return None
    driver = torch.get_device_module(device)
    if not driver.is_available():
        return None
    major, minor = driver.get_device_capability(device)
    return float(f"{major}.{minor}")


def triton_missing(device: torch.device) -> str:
    """Return why Triton's kernels cannot be compiled for an accelerator here; empty if they can, and on a
    CPU, where none is called.
    """
    return "" if device.type == "cpu" else triton_obstacle()


def device_memory(device: torch.device) -> int:
    """Return an accelerator's memory in bytes; 0 for a CPU, a missing device, or an unreported size."""
    driver: Any = getattr(torch, device.type, None)
    if device.type in ("cpu", "meta") or not hasattr(driver, "get_device_properties"):
        return 0
    if not driver.is_available():
        return 0
    return int(driver.get_device_properties(device).total_memory)


def processors(device: torch.device) -> int:
    """Return how many multiprocessors an accelerator has; 128 for a missing one, or one that does not report
    it."""
    driver: Any = getattr(torch, device.type, None)
    if not hasattr(driver, "get_device_properties") or not driver.is_available():
        return 128
    return int(getattr(driver.get_device_properties(device), "multi_processor_count", 128))


_POLL_SECONDS = 0.005


def stamp(device: torch.device) -> torch.Event | None:
    """Record a timing event on ``device`` behind what is enqueued; None on devices whose copies the host
    waits for.
    """
    if not kind_of(device.type).pins:
        return None
    return torch.accelerator.current_stream(device).record_event(torch.Event(device, enable_timing=True))


class CopiedToHost:
    """Copies of ``tensors`` on the host, enqueued behind the kernels that compute them.

    A device that copies asynchronously copies into pinned memory, as torch does by itself. CPU tensors are
    returned as they are. On other devices the host waits for the copy.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        [device] = {tensor.device for tensor in tensors}
        pins = kind_of(device.type).pins
        self._copies = [
            tensor.to(CPU.name, non_blocking=True) if pins else tensor.cpu() for tensor in tensors
        ]
        # Behind the copies in the same stream: once it has passed, all numbers are on the host.
        self._event = stamp(device)

    @property
    def under_way(self) -> bool:
        """Whether ``read`` may have to wait."""
        return self._event is not None

    def arrives(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for the copies; return whether they arrived. Raises nothing, even if the
        device is broken."""
        until = time.monotonic() + seconds
        try:
            # Polled, as ``synchronize`` has no limit and would hang with a hung device.
            while self._event is not None and not self._event.query():
                if time.monotonic() > until:
                    return False
                time.sleep(_POLL_SECONDS)
        except RuntimeError:
            return False
        return True

    def read(self) -> list[Tensor]:
        """Wait for the copies and return their numbers."""
        if self._event is not None:
            self._event.synchronize()
        return self._copies

    def seconds_since(self, start: torch.Event | None) -> float | None:
        """Return the seconds on the device from ``start`` to these copies, which must have been read. None
        where the device has no timer.
        """
        if start is None or self._event is None:
            return None
        try:
            return float(start.elapsed_time(self._event)) / 1e3
        except (RuntimeError, NotImplementedError):  # a plugged-in device may mark without a time
            return None
