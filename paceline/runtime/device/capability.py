"""What a device's driver says of it."""

from __future__ import annotations

from typing import Any

import torch

from paceline.plan.hardware.compiler import triton_obstacle
from paceline.plan.hardware.device_kinds import CUDA


def device_capability(device: torch.device) -> float | None:
    """Return CUDA's compute capability (8.6); None for any other device, AMD's included, and for a device
    that is not there, of which fake tensors are.
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
    """Return an accelerator's memory in bytes; 0 for a CPU, and for a device that does not say or is not
    there.
    """
    driver: Any = getattr(torch, device.type, None)
    if device.type in ("cpu", "meta") or not hasattr(driver, "get_device_properties"):
        return 0
    if not driver.is_available():
        return 0
    return int(driver.get_device_properties(device).total_memory)


def processors(device: torch.device) -> int:
    """Return how many multiprocessors an accelerator has; 128 for one that does not say or is not there."""
    driver: Any = getattr(torch, device.type, None)
    if not hasattr(driver, "get_device_properties") or not driver.is_available():
        return 128
    return int(getattr(driver.get_device_properties(device), "multi_processor_count", 128))
