"""A rank computes on the processors beside its card: memory that it pins then lies there too."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from paceline.plan.hardware.device_kinds import is_accelerator


def bind_to_card(device: torch.device, root: Path = Path("/")) -> str:
    """Bind this thread, and those that it starts, to the processors of the device's NUMA node; return what to
    say of it, empty where nothing is to be done.

    Nothing is done where the node is not known, where there is only one, and where this process was bound
    before (by numactl, Slurm or a container's cpuset). ``root``: where ``/sys`` lies.
    """
    if not is_accelerator(device.type) or not hasattr(os, "sched_setaffinity"):
        return ""
    address = _pci_address(device)
    node = _number(root / f"sys/bus/pci/devices/{address}/numa_node") if address else -1
    nodes = _processors(root / "sys/devices/system/node/online")
    if node < 0 or len(nodes) < 2:
        return ""
    own = os.sched_getaffinity(0)
    if own != _processors(root / "sys/devices/system/cpu/online"):
        return f"processors {len(own)}, as this process was bound before it started"
    near = _processors(root / f"sys/devices/system/node/node{node}/cpulist") & own
    if not near:
        return ""
    os.sched_setaffinity(0, near)
    return f"processors {len(near)} of {len(own)}, those of NUMA node {node}, where {address} is"


def _pci_address(device: torch.device) -> str:
    """Return the device's address on the PCI bus (``0000:3b:00.0``); empty if its driver does not tell."""
    driver = torch.get_device_module(device)
    read = getattr(driver, "get_device_properties", None)
    properties = read(device) if read is not None else None
    numbers = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if not all(isinstance(number, int) for number in numbers):
        return ""
    domain, bus, place = numbers
    return f"{domain:04x}:{bus:02x}:{place:02x}.0"


def _number(file: Path) -> int:
    """Return the number in a file; -1 if there is none."""
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return -1


def _processors(file: Path) -> set[int]:
    """Return the numbers in a list of Linux (``0-3,8``); empty if it cannot be read."""
    try:
        spans = [part.partition("-") for part in file.read_text(encoding="ascii").strip().split(",") if part]
        return {n for first, _, last in spans for n in range(int(first), int(last or first) + 1)}
    except (OSError, ValueError):
        return set()
