"""Which backend a device's process group has, and what travels on it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from paceline.core.errors import PacelineError
from paceline.runtime.process_group.world import World
from paceline.runtime.rank_env import RankEnv


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, torch.device | None]]:
    """(backend, device that it is bound to) of each process group; none is made."""
    groups: list[tuple[str, torch.device | None]] = []
    monkeypatch.setattr(
        dist, "init_process_group", lambda name, device_id, **_: groups.append((name, device_id))
    )
    return groups


@pytest.mark.parametrize(
    ("device", "group", "wire"),
    [
        ("cpu", ("gloo", None), "cpu"),
        ("cuda:1", ("nccl", torch.device("cuda:1")), "cuda:1"),
        ("xpu:1", ("xccl", torch.device("xpu:1")), "xpu:1"),
        ("npu:1", ("cpu:gloo,npu:hccl", None), "cpu"),  # no float64 on HCCL's wire
    ],
)
def test_a_group_has_its_devices_backend(
    opened: list[tuple[str, torch.device | None]],
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    group: tuple[str, torch.device | None],
    wire: str,
) -> None:
    name, _, index = device.partition(":")
    # this torch knows no device of that name
    own: Any = SimpleNamespace(type=name, index=int(index)) if name == "npu" else torch.device(device)
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    World.single(own).require_group()
    assert opened == [group]
    backend = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl", "npu": "hccl"}[name]
    assert World(0, 0, 2, 1, own, backend, None)._wire == torch.device(wire)


@pytest.mark.parametrize(("kind", "backend"), [("xpu", "nccl"), ("cuda", "xccl"), ("cpu", "nccl")])
def test_a_backend_of_another_device_is_refused(
    monkeypatch: pytest.MonkeyPatch, kind: str, backend: str
) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device(kind))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    monkeypatch.setattr(
        "paceline.runtime.process_group.world.bind_to_card", lambda device: ""
    )  # asks the card's driver
    with pytest.raises(PacelineError, match="runtime.backend"):
        World.open(RankEnv(world_size=2), device=kind, backend=backend)
