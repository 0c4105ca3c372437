"""The host's part of a rank: bind it to the processors near its card, and configure how freed memory is
reused.

Pinned memory is allocated near the processors on which a rank runs. While models are built, freed memory
returns to the system. In training it stays in the process: large activations are freed and allocated in every
step, and a fresh page costs a page fault and zeroing.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import torch

from paceline.plan.hardware.device_kinds import is_accelerator


def bind_to_card(device: torch.device, root: Path = Path("/")) -> str:
    """Bind this thread, and those that it starts, to the processors of the device's NUMA node. Return a line
    for the log, empty where nothing was done.

    Does nothing if the node is unknown, if there is only one, or if this process is already bound (by
    numactl, Slurm or a container's cpuset). ``root``: the parent of ``/sys``.
    """
    if not is_accelerator(device.type) or not hasattr(os, "sched_setaffinity"):
        return ""
    address = _pci_address(device)
    node = _number(root / f"sys/bus/pci/devices/{address}/numa_node") if address else -1
    nodes = _processors(root / "sys/devices/system/node/online")
    if node < 0 or len(nodes) < 2:
        return ""
    allowed = os.sched_getaffinity(0)
    # A smaller set was chosen by somebody who knows more: numactl, Slurm or a container.
    if allowed != _processors(root / "sys/devices/system/cpu/online"):
        return f"processors {len(allowed)}, as this process was bound before it started"
    # Intersected: a processor that is offline or forbidden makes ``sched_setaffinity`` fail.
    near = _processors(root / f"sys/devices/system/node/node{node}/cpulist") & allowed
    if not near:
        return ""
    os.sched_setaffinity(0, near)
    return f"processors {len(near)} of {len(allowed)}, those of NUMA node {node}, where {address} is"


def _pci_address(device: torch.device) -> str:
    """Return the device's address on the PCI bus (``0000:3b:00.0``); empty if its driver does not report
    it."""
    read = getattr(torch.get_device_module(device), "get_device_properties", None)
    properties = read(device) if read is not None else None
    numbers = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if not all(isinstance(number, int) for number in numbers):
        return ""
    domain, bus, slot = numbers
    return f"{domain:04x}:{bus:02x}:{slot:02x}.0"


def _number(file: Path) -> int:
    """Return the number in a file; -1 if there is none."""
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return -1


def _processors(file: Path) -> set[int]:
    """Parse a list of CPU numbers as Linux writes it (``0-3,8``); empty if the file cannot be read."""
    try:
        spans = [part.partition("-") for part in file.read_text(encoding="ascii").strip().split(",") if part]
        return {n for first, _, last in spans for n in range(int(first), int(last or first) + 1)}
    except (OSError, ValueError):
        return set()


_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -2, -3, -4  # glibc, malloc.h


def return_freed_memory() -> bool:
    """Make glibc map each block of at least 1 MiB separately, so that freeing it returns it to the system.
    Return False with another C library.

    Otherwise glibc soon takes blocks of up to 32 MiB from the heap, which shrinks only from its end. Call it
    before models are built. Affects the whole process and changes no result.
    """
    return _set({_M_MMAP_THRESHOLD: 2**20})


def configure_malloc() -> bool:
    """Make glibc serve large blocks from the heap and never return them. Return False with another C library.

    Call it in a training worker after the models are built, or their temporary memory would stay. Memory that
    is free then is returned. Affects the whole process and changes no result.
    """
    return _set({_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: 2**31 - 1, _M_TOP_PAD: 64 * 2**20})


def _set(options: dict[int, int]) -> bool:
    """Return free memory to the system, then set ``options`` of mallopt."""
    if sys.platform != "linux":
        return False
    try:
        library = ctypes.CDLL(None)
        mallopt, trim = library.mallopt, library.malloc_trim
    except (OSError, AttributeError):
        return False
    trim(0)
    return all(mallopt(option, value) == 1 for option, value in options.items())


def process_seconds() -> float | None:
    """Return for how long this process exists, by Linux; None elsewhere."""
    try:
        # The program's name stands in brackets and may hold spaces and brackets: the fields begin after the
        # last one.
        fields = Path("/proc/self/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        # ``starttime`` is field 22 of proc(5), so index 19 here: clock ticks after boot.
        uptime = float(Path("/proc/uptime").read_text("ascii").split()[0])
        return max(0.0, uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return None


def threads_per_rank(local_world_size: int) -> int:
    """Return the CPU threads of one of ``local_world_size`` processes: an even share of the cores."""
    return max(1, _usable_cores() // max(1, local_world_size))


def _usable_cores() -> int:
    # What this process may use, not what the machine has: a container or a job gets fewer.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:  # a container's CPU quota (cgroup v2): "200000 100000" is two cores
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return cores
