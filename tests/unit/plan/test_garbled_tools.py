"""Drivers' tools that print what nobody expects, and torch's answer: a device, or a refusal by name; never an
exception, and no card counted as more than it is.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline.doctor import inspect
from paceline.plan.hardware import probe, vendor_smi
from paceline.plan.hardware.choose_devices import DeviceSelection, choose
from paceline.plan.hardware.probe_results import (
    DeviceFiles,
    ProbedDevice,
    ProbeResults,
    SmiAnswer,
    TorchAnswer,
    Wheel,
)

MIB = 2**20
CARD = b"NVIDIA A100, 81920, 80000, 8.0, GPU-1, 580.95, Disabled"
CUDA_WHEEL, HIP_WHEEL = Wheel("2.13.0+cu130", cuda="13.0"), Wheel("2.13.0+rocm7.1", hip="7.1")
H100 = ProbedDevice("H100", 80 << 30, 80 << 30, 9.0, "GPU-1")
MI300 = tuple(
    ProbedDevice(f"MI300X {i}", 1 << 37, 1 << 37, uuid=f"0x{i}c2b", arch="gfx942") for i in range(3)
)


def tool(folder: Path, monkeypatch: pytest.MonkeyPatch, script: bytes, name: str = "nvidia-smi") -> None:
    path = folder / name
    path.write_bytes(b"#!/bin/sh\n" + script)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_bytes_that_are_no_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, monkeypatch, b"printf '" + CARD.replace(b"A100", b"\\377 A100") + b"\\n'\n")
    answer = vendor_smi.nvidia_smi()
    assert answer is not None and answer.devices[0].total_bytes == 81920 * MIB
    tool(tmp_path, monkeypatch, b"printf '42, 3072, /home/\\377/serve\\n'\n")
    assert inspect.parse_holders(inspect.command_output(inspect.HOLDERS))[0][:2] == (42, 3072 * MIB)


def test_a_driver_that_does_not_know_a_field_is_asked_for_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drivers before 510: the answer names the driver, and no wheel that it cannot run is recommended."""
    refusal = b'Field "compute_cap" is not a valid field to query.'
    refusal = b'case "$*" in *compute_cap*) echo \'' + refusal + b"'; exit 2;; esac\n"
    tool(tmp_path, monkeypatch, refusal + b"echo 'Tesla V100, 16160, 16150, GPU-7, 470.82.01'\n")
    answer = vendor_smi.nvidia_smi()
    assert answer == SmiAnswer(
        (ProbedDevice("Tesla V100", 16160 * MIB, 16150 * MIB, None, "GPU-7"),), "470.82.01"
    )
    answer_of_torch = TorchAnswer(
        "2.13.0+cu130", cuda="13.0", warnings="The NVIDIA driver on your system is too old"
    )
    [finding] = choose(
        ProbeResults(CUDA_WHEEL, DeviceFiles(nvidia=1), answer, torch=answer_of_torch), {}
    ).findings
    assert finding.code == "device.driver_old"
    assert "install a driver from 525.6 on" in finding.hint and "runs CUDA 12" not in finding.hint


@pytest.mark.parametrize(
    ("line", "total", "name"),
    [
        ("NVIDIA A100, inf, nan, nan, GPU-1, 580.95, Disabled", None, "NVIDIA A100"),
        ("NVIDIA A100, [Unknown Error], ERR!, 8.0, GPU-1, 580.95, [N/A]", None, "NVIDIA A100"),
        ("Graphics, of 2026, 100, 90, 8.0, GPU-1, 580.95, [N/A]", 100 * MIB, "Graphics, of 2026"),
    ],
)
def test_odd_fields(line: str, total: int | None, name: str) -> None:
    text = (
        f"WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n{line}\nUnable to determine the device handle\n"
    )
    [card] = vendor_smi.parse_nvidia(text).devices
    assert (card.total_bytes, card.name) == (total, name)


def test_rocm_smi_with_warnings_around_it_and_a_dozen_cards() -> None:
    cards = ", ".join(
        f'"card{i}": {{"Card Series": "M{i}", "VRAM Total Memory (B)": "NaN"}}' for i in range(12)
    )
    answer = vendor_smi.parse_amd(f"WARNING: low-power\n{{{cards}}}\nWARNING: {{low-power}}\n")
    assert [card.name for card in answer.devices] == [f"M{i}" for i in range(12)]
    assert {card.total_bytes for card in answer.devices} == {None}
    assert vendor_smi.parse_amd("{broken").failure == "{broken"


@pytest.mark.parametrize("text", ["3", "null", "[]", '"x"', "[[[", "{}", ""])
def test_an_answer_of_torch_that_is_none(text: str) -> None:
    assert probe.parse_answer(text) is None


def silent(wheel: Wheel, environ: dict[str, str], **seen: SmiAnswer | DeviceFiles) -> DeviceSelection:
    return choose(ProbeResults(wheel, silence="torch found no devices within 120 s", **seen), environ)  # type: ignore[arg-type]


def test_without_torchs_answer_a_build_counts_the_cards_that_it_can_drive() -> None:
    nvidia, amd = SmiAnswer((H100,), "580.95"), SmiAnswer(MI300)
    refused = silent(HIP_WHEEL, {}, nvidia=nvidia, nodes=DeviceFiles(nvidia=1))
    assert refused.kind.name == "cpu" and refused.findings[0].code == "device.silent"
    both = silent(HIP_WHEEL, {}, nvidia=nvidia, amd=amd, nodes=DeviceFiles(nvidia=1, amd=3))
    assert both.hip and [one.name for one in both.devices] == [one.name for one in MI300]
    plain = silent(CUDA_WHEEL, {}, nvidia=nvidia, amd=amd, nodes=DeviceFiles(nvidia=1, amd=3))
    assert not plain.hip and plain.devices == (H100,)


@pytest.mark.parametrize(
    "environ",
    [{"HIP_VISIBLE_DEVICES": "1"}, {"ROCR_VISIBLE_DEVICES": "GPU-1c2b"}, {"CUDA_VISIBLE_DEVICES": "1"}],
)
def test_amds_variables_choose_among_its_cards(environ: dict[str, str]) -> None:
    chosen = silent(HIP_WHEEL, environ, amd=SmiAnswer(MI300), nodes=DeviceFiles(amd=3))
    assert chosen.devices == MI300[1:2]


def test_a_card_that_is_full_does_not_have_the_hosts_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    full = ProbedDevice("H100", 80 << 30, 0, 9.0, "GPU-1")
    answer_of_torch = TorchAnswer("2.13.0+cu130", "cuda", (full,), cuda="13.0")
    monkeypatch.setattr(
        probe, "look", lambda environ: ProbeResults(CUDA_WHEEL, DeviceFiles(nvidia=1), torch=answer_of_torch)
    )
    found = probe.probe({})
    assert found.hardware.memory_bytes == 0
    assert [one.code for one in found.findings] == ["device.memory_taken"]
