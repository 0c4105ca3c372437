"""The device of this process: selection, memory, speed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

from paceline.core.errors import PacelineError
from paceline.runtime import codes


def pick_device(kind: str, local_rank: int) -> torch.device:
    """Return ``cpu``, ``cuda`` (this rank's own) or, for ``auto``, the better of them.

    Raises ``runtime.device`` if it is not available.
    """
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu":
        return torch.device("cpu")
    if kind != "cuda":
        raise PacelineError(
            codes.RUNTIME_DEVICE(f"there is no device named '{kind}'", found=kind, hint="use cpu or cuda")
        )
    if not torch.cuda.is_available():
        reason = "this torch is a CPU build" if torch.version.cuda is None else "torch sees no CUDA device"
        raise PacelineError(
            codes.RUNTIME_DEVICE(
                "the plan requires CUDA, but this process has no CUDA device",
                found=reason,
                hint="set use_cpu: true, or install a torch with CUDA",
            )
        )
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise PacelineError(
            codes.RUNTIME_DEVICE(
                f"there is no GPU for local rank {local_rank}",
                found=f"{count} GPUs visible",
                hint=f"start at most {count} processes on this node, or change CUDA_VISIBLE_DEVICES",
            )
        )
    return torch.device("cuda", local_rank)


def memory_bytes(device: torch.device) -> int:
    """Return this process's peak memory: VmHWM (resident set) on a CPU, torch's allocated maximum on CUDA."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # no /proc: macOS
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def device_name(device: torch.device) -> str:
    """Return the driver's name of a CUDA device; the device type of any other."""
    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else device.type


def matmul_rate(device: torch.device, dtype: torch.dtype, seconds: float = 0.15) -> float:
    """Measure FLOP/s of square matrix products in ``dtype``: the best of those that fit in ``seconds``.

    A product counts 2 n³ operations. A step's speed is given relative to it on a device without a data-sheet
    peak.
    """
    size = 8192 if device.type == "cuda" else 1024
    left = torch.randn(size, size, device=device).to(dtype)
    right = torch.randn(size, size, device=device).to(dtype)
    out = left @ right  # warm-up: kernels are chosen and loaded
    _synchronize(device)
    best, deadline = float("inf"), time.perf_counter() + seconds
    while True:
        started = time.perf_counter()
        torch.mm(left, right, out=out)
        _synchronize(device)
        now = time.perf_counter()
        best = min(best, now - started)
        if now >= deadline:
            return 2.0 * size**3 / best


def threads_per_rank(local_world_size: int, requested: int | None = None) -> int:
    """Return CPU threads for one of ``local_world_size`` processes: an even share of the cores, at least 1.

    torchrun sets OMP_NUM_THREADS=1 by default, which leaves most cores of a CPU run idle: pass ``requested``
    only for a value that the user chose.
    """
    if requested is not None:
        return max(1, requested)
    return max(1, _usable_cores() // max(1, local_world_size))


def set_threads(count: int) -> None:
    """Set the threads used inside one operator; more than a rank's share of the cores makes ranks compete."""
    torch.set_num_threads(max(1, count))


def _usable_cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:  # a container's CPU quota (cgroup v2): "200000 100000" is two cores
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return cores


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
