"""Machines as nvidia-smi, rocm-smi, ``/dev`` and torch tell of them → device, memory, precision, or the
refusal.

``machines/``: the tools' outputs in the form that they print (public reports of such machines; none was at
hand here), and torch's answer as ``paceline.runtime.device.probe`` prints it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.plan.hardware import probe as hardware
from paceline.plan.hardware import vendor_smi
from paceline.plan.hardware.probe_results import DeviceFiles, TorchAnswer, Wheel
from paceline.plan.plan_json import from_json, to_json

GIB = 2**30
MACHINES = sorted((Path(__file__).parent / "machines").glob("*.json"))


def program(machine: dict[str, Any], command: Any) -> tuple[str | None, str]:
    """What a tool of that machine prints; a text behind ``!`` is why it failed."""
    text = {
        vendor_smi.NVIDIA_QUERY: machine["nvidia_smi"],
        vendor_smi.AMD_QUERY: machine["rocm_smi"],
        ("nvidia-smi", "-L"): machine["nvidia_smi_list"],
    }[tuple(command)]
    if text is None:
        return None, ""
    return (None, text[1:]) if text.startswith("!") else (text, "")


def on(machine: dict[str, Any], monkeypatch: pytest.MonkeyPatch, **options: Any) -> hardware.HardwareReport:
    answer = from_json(TorchAnswer, machine["torch"]) if machine["torch"] else None
    monkeypatch.setattr(vendor_smi, "command_output", lambda command: program(machine, command))
    monkeypatch.setattr(hardware, "installed_wheel", lambda: Wheel(**machine["wheel"]))
    monkeypatch.setattr(hardware, "device_nodes", lambda: DeviceFiles(**machine["nodes"]))
    monkeypatch.setattr(hardware, "host_memory_bytes", lambda: 500 * GIB)
    monkeypatch.setattr(hardware, "query_torch", lambda environ, wheel, cache: (answer, machine["silence"]))
    return hardware.probe(machine["environ"], tasks=machine["tasks"], **options)


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_a_machine_gives_the_right_device_or_says_why_not(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = json.loads(path.read_text(encoding="utf-8"))
    probed, expected = on(machine, monkeypatch), machine["expect"]
    found, codes = probed.hardware, [finding.code for finding in probed.findings]
    assert (found.device, codes) == (expected["device"], expected["codes"])
    assert expected.get("note", "") in found.device_note
    if expected["device"] == "cpu":
        assert [f.severity.value for f in probed.findings] == ["error"] * len(codes)
        assert all(expected["hint"] in f.hint and "training.use_cpu: true" in f.hint for f in probed.findings)
        return
    assert all(finding.severity.value == "warning" for finding in probed.findings)
    assert (found.device_name, found.num_devices) == (expected["name"], expected["count"])
    assert found.memory_bytes / GIB == pytest.approx(expected["gib"], abs=0.06)
    assert (found.bf16, found.fp16) == (expected["bf16"], expected["fp16"])


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_use_cpu_looks_at_no_accelerator_and_refuses_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = json.loads(path.read_text(encoding="utf-8"))
    probed = on(machine, monkeypatch, use_cpu=True)
    assert (probed.hardware.device, probed.findings) == ("cpu", ())


def test_there_are_a_dozen_machines_and_each_cause_of_an_idle_accelerator() -> None:
    refused = {
        code
        for path in MACHINES
        for expected in [json.loads(path.read_text(encoding="utf-8"))["expect"]]
        if expected["device"] == "cpu"
        for code in expected["codes"]
    }
    causes = "arch cpu_torch driver_old hidden mig_empty package silent undriven unused"
    assert len(MACHINES) >= 12 and refused == {f"device.{cause}" for cause in causes.split()}


def test_torch_is_asked_only_where_something_hints_at_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    machine = json.loads((Path(__file__).parent / "machines/nothing.json").read_text(encoding="utf-8"))
    on(machine, monkeypatch)
    monkeypatch.setattr(hardware, "query_torch", lambda environ, wheel, cache: asked.append("") or (None, ""))
    hardware.probe({})
    assert asked == []
    monkeypatch.setattr(hardware, "installed_wheel", lambda: Wheel("2.13.0", cuda="13.0"))
    monkeypatch.setattr(hardware, "device_nodes", lambda: DeviceFiles(nvidia=1))
    hardware.probe({})
    assert asked == [""]


def test_an_answer_of_torch_survives_json() -> None:
    for path in MACHINES:
        told = json.loads(path.read_text(encoding="utf-8"))["torch"]
        if told:
            assert to_json(from_json(TorchAnswer, told)) == told
