"""An accelerator that is there and would lie idle: ``plan`` refuses it, unless the CPU was asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fault_jobs import Job

from paceline.launch.preflight import child_checks
from paceline.plan.hardware import probe as hardware
from paceline.plan.hardware.probe_results import (
    DeviceFiles,
    ProbedDevice,
    ProbeResults,
    SmiAnswer,
    TorchAnswer,
    Wheel,
)

CARD = ProbedDevice("NVIDIA L4", 22 * 2**30, 22 * 2**30, 8.9, "GPU-0")
IDLE = ProbeResults(Wheel("2.13.0+cpu"), DeviceFiles(nvidia=1), SmiAnswer((CARD,), "580.95.05"))
TAKEN = replace(CARD, free_bytes=12 * 2**30)
SEEN = ProbeResults(
    Wheel("2.13.0+cu130", cuda="13.0"),
    DeviceFiles(nvidia=1),
    torch=TorchAnswer("2.13.0+cu130", "cuda", (TAKEN,), cuda="13.0", arch_list=("sm_80", "sm_86")),
)


@pytest.fixture(autouse=True)
def no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_checks, "run_child", lambda job: ({}, ""))


def test_a_card_that_this_torch_cannot_use_is_an_error_before_the_start(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "look", lambda environ: IDLE)
    finding = job.found({"training.use_cpu": False})["device.cpu_torch"]
    assert finding.severity.value == "error" and "NVIDIA L4" in finding.found
    assert "pip install" in finding.hint and "training.use_cpu: true" in finding.hint
    assert "device.cpu_torch" not in job.found({"training.use_cpu": True})


def test_memory_that_others_hold_is_a_warning_and_the_plan_goes_on(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "look", lambda environ: SEEN)
    found = job.found({"training.use_cpu": False})
    assert found["device.memory_taken"].severity.value == "warning"
    assert [code for code, finding in found.items() if finding.severity.value == "error"] == []
