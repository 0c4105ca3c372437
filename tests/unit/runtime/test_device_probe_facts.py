"""What the child that asks torch says of a GPU within a processor: its memory is the host's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from paceline.plan.hardware.probe_results import runs_on
from paceline.runtime.device import probe

GIB = 2**30


@pytest.mark.parametrize(
    ("flag", "free"), [("is_integrated", 100), ("is_integrated_gpu", 100), ("is_multi_gpu_board", 20)]
)
def test_a_cache_of_files_takes_no_memory_of_a_gpu_within_the_processor(
    flag: str, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DGX Spark after it read a checkpoint: the driver says 20 GiB free, the kernel gives up its cache."""
    properties = SimpleNamespace(name="NVIDIA GB10", total_memory=120 * GIB, uuid="8f5b", **{flag: 1})
    module = SimpleNamespace(
        get_device_properties=lambda index: properties, get_device_capability=lambda index: (12, 1)
    )
    monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda index: (20 * GIB, 120 * GIB))
    monkeypatch.setattr(probe, "available_host_memory", lambda: 100 * GIB)
    found = probe.probe_device("cuda", module, 0)  # type: ignore[arg-type]
    assert (found.free_bytes, found.shared) == (free * GIB, flag != "is_multi_gpu_board")
    assert (found.name, found.total_bytes, found.capability) == ("NVIDIA GB10", 120 * GIB, 12.1)


def test_memory_that_processes_can_still_get(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    assert probe.available_host_memory(meminfo) == 0
    for text, expected in (("MemTotal: 9 kB\nMemAvailable:   7 kB\n", 7168), ("MemAvailable: x\n", 0)):
        meminfo.write_text(text)
        assert probe.available_host_memory(meminfo) == expected


@pytest.mark.parametrize(("hip", "arch"), [(None, ""), ("7.0", "gfx942")])
def test_the_architecture_is_amds_alone(hip: str | None, arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA build of torch has the attribute too, with the card's name: a real H100 was refused for it."""
    monkeypatch.setattr(torch.version, "hip", hip)
    given = "gfx942:sramecc+:xnack-" if hip else "NVIDIA H100 80GB HBM3"
    properties = SimpleNamespace(name="A card", total_memory=80 * GIB, gcnArchName=given)
    module = SimpleNamespace(
        get_device_properties=lambda index: properties, get_device_capability=lambda index: (9, 0)
    )
    monkeypatch.setattr(probe, "computes_bf16", lambda device: True)
    found = probe.probe_device("cuda", module, 0)  # type: ignore[arg-type]
    assert (found.arch, found.capability) == (arch, None if hip else 9.0)
    assert runs_on(found, ["gfx90a", "gfx942"] if hip else ["sm_80", "sm_90", "sm_100"])
    assert not runs_on(found, ["gfx90a"] if hip else ["sm_80", "sm_100"])
    if not hip:  # capability decides, whatever else is told
        assert runs_on(replace(found, arch=given), ["sm_90"])
