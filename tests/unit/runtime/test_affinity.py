"""A rank is bound to the processors of its card's NUMA node, if that is known and nobody bound it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.runtime.device.host import bind_to_card

CARD = torch.device("cuda", 1)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two nodes of four processors; a card of the second. ``bound``: what this process was given."""
    given = SimpleNamespace(root=tmp_path, own=set(range(8)), bound=None, files={})
    properties = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    driver = SimpleNamespace(get_device_properties=lambda device: properties)
    monkeypatch.setattr(torch, "get_device_module", lambda device: driver)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(given.own))
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: setattr(given, "bound", set(cpus)))
    given.properties = properties
    for name, text in {
        "sys/bus/pci/devices/0000:3b:00.0/numa_node": "1\n",
        "sys/devices/system/node/online": "0-1\n",
        "sys/devices/system/cpu/online": "0-7\n",
        "sys/devices/system/node/node0/cpulist": "0-1,4-5\n",
        "sys/devices/system/node/node1/cpulist": "2-3,6-7\n",
    }.items():
        given.files[name] = tmp_path / name
        given.files[name].parent.mkdir(parents=True, exist_ok=True)
        given.files[name].write_text(text)
    return given


def test_a_rank_goes_to_its_cards_node_and_says_so(machine: Any) -> None:
    said = bind_to_card(CARD, machine.root)
    assert machine.bound == {2, 3, 6, 7}
    assert said == "processors 4 of 8, those of NUMA node 1, where 0000:3b:00.0 is"


def test_who_is_bound_already_stays(machine: Any) -> None:
    machine.own = {0, 1}
    assert "2, as this process was bound before" in bind_to_card(CARD, machine.root)
    assert machine.bound is None


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("sys/bus/pci/devices/0000:3b:00.0/numa_node", "-1\n"),  # a machine that does not tell
        ("sys/bus/pci/devices/0000:3b:00.0/numa_node", None),
        ("sys/devices/system/node/online", "0\n"),
        ("sys/devices/system/node/node1/cpulist", "\n"),  # memory without processors
    ],
)
def test_what_is_not_known_is_left(machine: Any, file: str, text: str | None) -> None:
    if text is None:
        machine.files[file].unlink()
    else:
        machine.files[file].write_text(text)
    assert bind_to_card(CARD, machine.root) == "" and machine.bound is None


def test_a_device_without_an_address_and_a_processor_are_left(machine: Any) -> None:
    del machine.properties.pci_bus_id
    assert bind_to_card(CARD, machine.root) == "" and machine.bound is None
    assert bind_to_card(torch.device("cpu"), machine.root) == ""
