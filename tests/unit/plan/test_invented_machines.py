"""Machines that no report describes, made up from what their parts say: the right device, memory, precision
and kernel, or the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from paceline.plan.hardware import vendor_smi
from paceline.plan.hardware.choose_devices import choose
from paceline.plan.hardware.probe_results import (
    DeviceFiles,
    ProbedDevice,
    ProbeResults,
    SmiAnswer,
    TorchAnswer,
    Wheel,
)
from paceline.plan.model.kernels import AttentionCall, attention_kernel

GIB = 2**30
ONE_NVIDIA = DeviceFiles(nvidia=1)
ARCHS = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")
CUDA_WHEEL, HIP_WHEEL = Wheel("2.13.0+cu130", cuda="13.0"), Wheel("2.13.0+rocm7.1", hip="7.1")


def card(
    name: str, gib: float, capability: float | None, free: float | None = None, **facts: object
) -> ProbedDevice:
    total, left = (int(x * GIB) for x in (gib, gib if free is None else free))
    return ProbedDevice(name, total, left, capability, **facts)  # type: ignore[arg-type]


def by_torch(*cards: ProbedDevice, nodes: DeviceFiles = ONE_NVIDIA, **more: SmiAnswer) -> ProbeResults:
    answer = TorchAnswer("2.13.0+cu130", "cuda", cards, cuda="13.0", arch_list=ARCHS)
    return ProbeResults(CUDA_WHEEL, nodes, torch=answer, **more)


def by_rocm(*cards: ProbedDevice) -> ProbeResults:
    archs = tuple({one.arch for one in cards})
    answer = TorchAnswer("2.13.0+rocm7.1", "cuda", cards, hip="7.1", arch_list=archs)
    return ProbeResults(HIP_WHEEL, DeviceFiles(amd=1), torch=answer)


def blind(warning: str = "", failure: str = "") -> ProbeResults:
    """There is a card, and torch does not see it."""
    tool = SmiAnswer(failure=failure) if failure else None
    answer = TorchAnswer("2.13.0+cu130", cuda="13.0", warnings=warning)
    return ProbeResults(CUDA_WHEEL, DeviceFiles(nvidia=1), tool, torch=answer)


def sliced(listed: str) -> ProbeResults:
    """Without torch: an H100 in MIG mode."""
    whole = vendor_smi.parse_nvidia("NVIDIA H100, 81559, 80000, 9.0, GPU-7, 580.54, Enabled").devices
    return ProbeResults(
        Wheel(), DeviceFiles(nvidia=1), SmiAnswer(vendor_smi.with_slices(whole, listed), "580.54")
    )


SLICES = """GPU 0: NVIDIA H100 (UUID: GPU-7)
  MIG 1g.12gb+me   Device  0: (UUID: MIG-aa)
  MIG 3g.40gb      Device  1: (UUID: MIG-bb)
"""
HELD = card("A100", 79, 8.0, free=0.5, uuid="GPU-a")
INSIDE = card("Radeon 890M", 60, None, 50, arch="gfx1150", bf16=True, shared=True)


@dataclass(frozen=True)
class Made:
    """One machine: what is seen, and (device, name, how many, GiB, precision, kernel), or words of the
    remedy.
    """

    sights: ProbeResults
    found: tuple[str, int, float, str, str] | str
    codes: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)


MACHINES = {
    "Jetson Orin": Made(
        by_torch(card("Orin", 61, 8.7, shared=True), nodes=DeviceFiles(unsure=True)),
        ("Orin", 1, 61, "bfloat16", "varlen_flash"),
    ),
    "RTX 5090 and 4090": Made(
        by_torch(card("5090", 31.4, 12.0), card("4090", 23.6, 8.9)),
        ("4090", 2, 23.6, "bfloat16", "varlen_flash"),
    ),
    "T4 beside A100": Made(
        by_torch(card("T4", 15, 7.5), card("A100", 79, 8.0)),
        ("A100", 1, 79, "bfloat16", "varlen_flash"),
        ("device.mixed",),
    ),
    "one of two full": Made(
        by_torch(HELD, card("A100", 79, 8.0)),
        ("A100", 1, 79, "bfloat16", "varlen_flash"),
        ("device.mixed",),
    ),
    "all of them full": Made(
        by_torch(HELD), ("A100", 1, 0.5, "bfloat16", "varlen_flash"), ("device.memory_taken",)
    ),
    "B300": Made(by_torch(card("B300", 268, 10.3)), ("B300", 1, 268, "bfloat16", "varlen_flash")),
    "GTX 1650 with a desktop on it": Made(
        by_torch(card("GTX 1650", 4, 7.5, free=3.3)), ("GTX 1650", 1, 4, "float16", "padded_sdpa")
    ),
    "a virtual GPU": Made(
        by_torch(
            card("GRID A100D-10C", 10, 8.0, uuid="5"),
            nvidia=vendor_smi.parse_nvidia("GRID A100D-10C, 10240, 9800, 8.0, GPU-5, 550.54, Disabled"),
        ),
        ("GRID A100D-10C", 1, 10, "bfloat16", "varlen_flash"),
    ),
    "MI300X in eight parts": Made(
        by_rocm(*(card("MI300X", 24, None, arch="gfx942", uuid=str(i)) for i in range(8))),
        ("MI300X", 8, 24, "bfloat16", "varlen_flash"),
    ),
    "a Radeon beside the processor's": Made(
        by_rocm(INSIDE, card("RX 7900", 24, None, arch="gfx1100", bf16=True)),
        ("RX 7900", 1, 24, "bfloat16", "varlen_flash"),
        ("device.mixed",),
    ),
    "the processor's alone": Made(
        by_rocm(INSIDE),
        ("Radeon 890M", 1, 50, "bfloat16", "varlen_flash"),
        ("device.memory_taken",),
    ),
    "MIG, the first slice": Made(
        sliced(SLICES), ("NVIDIA H100 MIG 1g.12gb+me", 1, 11.4, "bfloat16", "varlen_flash")
    ),
    "MIG by name": Made(
        sliced(SLICES),
        ("NVIDIA H100 MIG 3g.40gb", 1, 38, "bfloat16", "varlen_flash"),
        environ={"CUDA_VISIBLE_DEVICES": "MIG-bb"},
    ),
    "V100 under CUDA 13": Made(by_torch(card("V100", 16, 7.0)), "whl/cu126", ("device.arch",)),
    "K80": Made(by_torch(card("K80", 11, 3.7)), "use another card", ("device.arch",)),
    "NVSwitch without its service": Made(
        blind("CUDA initialization: ... Error 802: system not yet initialized"),
        "nvidia-fabricmanager",
        ("device.unused",),
    ),
    "a driver changed under its module": Made(
        blind(failure="nvidia-smi: Failed to initialize NVML: Driver/library version mismatch"),
        "reboot",
        ("device.unused",),
    ),
    "a card that fell off the bus": Made(
        blind(failure="nvidia-smi: Unable to determine the device handle for GPU0: GPU is lost."),
        "NVRM: Xid",
        ("device.unused",),
    ),
    "no unified memory": Made(blind("CUDA unknown error - this may"), "nvidia_uvm", ("device.unused",)),
}


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_that_nobody_described(name: str) -> None:
    made = MACHINES[name]
    found = choose(made.sights, made.environ)
    assert tuple(finding.code for finding in found.findings) == made.codes
    if isinstance(made.found, str):
        assert found.kind.name == "cpu"
        assert made.found in found.findings[0].hint and "use_cpu: true" in found.findings[0].hint
        return
    card_name, count, gib, dtype, kernel = made.found
    assert (found.kind.name, found.weakest.name, len(found.used)) == ("cuda", card_name, count)
    assert found.memory_bytes is not None and found.memory_bytes / GIB == pytest.approx(gib, abs=0.05)
    chosen = "bfloat16" if found.bf16 else "float16" if found.fp16 else "float32"
    call = AttentionCall(128, 128)
    ran, _ = attention_kernel(found.kind.name, found.weakest.capability, chosen, call)
    assert (chosen, ran) == (dtype, kernel)


def test_what_holds_a_card_that_is_left_out_is_told() -> None:
    [finding] = choose(MACHINES["one of two full"].sights, {}).findings
    assert "left out A100, of which other processes hold 78.5 GiB" in finding.what
