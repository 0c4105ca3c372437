"""Find why an existing accelerator would stay idle, and the remedy: the first certain cause."""

from __future__ import annotations

import re
from collections.abc import Mapping

from paceline.core.diagnostics import Diagnostic
from paceline.plan import codes
from paceline.plan.hardware.device_kinds import CUDA, KINDS, NPU
from paceline.plan.hardware.probe_results import ProbedDevice, ProbeResults, visible_cards

OR_CPU = "or set training.use_cpu: true"
SLOW_DRIVER = (
    "a driver that takes that long usually starts anew for each process: nvidia-smi -pm 1 (or"
    " nvidia-persistenced), then again"
)
# CUDA's major release → the oldest driver that runs it (CUDA toolkit release notes, "CUDA minor version
# compatibility")
OLDEST_DRIVER: Mapping[int, float] = {11: 450.80, 12: 525.60, 13: 580.0}
#: what the driver's tool or torch says → what to do
KNOWN_CAUSES: Mapping[str, str] = {
    "library version mismatch": "the driver was updated while its kernel module stayed loaded: reboot",
    "error 803": "the driver was updated while its kernel module stayed loaded: reboot",
    "error 802": "cards behind an NVSwitch need its service: systemctl start nvidia-fabricmanager",
    "system not yet initialized": "cards behind an NVSwitch need its service: systemctl start"
    " nvidia-fabricmanager",
    "has fallen off the bus": "reset that card (nvidia-smi -r) or reboot; see dmesg for NVRM: Xid",
    "device handle": "reset that card (nvidia-smi -r) or reboot; see dmesg for NVRM: Xid",
    "cuda unknown error": "load the driver's module for unified memory (modprobe nvidia_uvm), or reboot",
    "communicate with the nvidia driver": "load the driver (modprobe nvidia), or install it for this kernel",
}
#: CUDA's wheels of this release are the last with code for cards from _OLDEST_CARD to below _FIRST_OF_13
_LAST_FOR_OLD, _OLDEST_CARD, _FIRST_OF_13 = "cu126", 5.0, 7.5
NO_CARD = ("", "-1", "nodevfiles", "none", "void")  # Slurm and container runtimes write such words
_WHEELS = "https://download.pytorch.org/whl"
_GET_STARTED = "https://pytorch.org/get-started/locally lists the releases"


def idle(sights: ProbeResults, environ: Mapping[str, str]) -> Diagnostic:
    """Return the error for existing accelerators that torch does not use."""
    witnesses = _witnesses(sights)
    if variable := hiding(sights, environ):
        value = f"{variable}={environ[variable]}"
        return codes.DEVICE_HIDDEN(variable, f"{value}; {witnesses}", variable=variable, or_cpu=OR_CPU)
    if sights.nodes.gaudi and not (sights.nodes.nvidia or sights.nodes.amd or sights.nodes.ascend):
        return undriven("Intel Gaudi (hpu)")
    if sights.nodes.ascend and not sights.wheel.npu:
        return codes.DEVICE_PACKAGE(
            NPU.package or "",
            f"torch {sights.wheel.version}; {witnesses}",
            package=NPU.package,
            or_cpu=OR_CPU,
        )
    if sights.wheel.on_cpu_only:
        return codes.DEVICE_CPU_TORCH(
            "torch", f"torch {sights.wheel.version}; {witnesses}", install=install(sights), or_cpu=OR_CPU
        )
    if old := _old_driver(sights):
        return old
    if any(card.mig for card in sights.of_tools) and not any(card.of for card in sights.of_tools):
        return codes.DEVICE_MIG_EMPTY("nvidia-smi", witnesses, or_cpu=OR_CPU)
    if sights.silence:
        return codes.DEVICE_SILENT(
            "torch", f"{sights.silence}; {witnesses}", slow_driver=SLOW_DRIVER, or_cpu=OR_CPU
        )
    warnings = sights.torch.warnings if sights.torch else ""
    maker = "AMD" if sights.nodes.amd and not sights.nodes.nvidia else "NVIDIA"
    fits = sights.wheel.hip if maker == "AMD" else sights.wheel.cuda
    messages = " ".join((warnings, *(tool.failure for tool in (sights.nvidia, sights.amd) if tool))).lower()
    known = next((remedy for words, remedy in KNOWN_CAUSES.items() if words in messages), "")
    hint = known or (
        f"{'/dev/kfd and /dev/dri' if maker == 'AMD' else 'nvidia-smi'} must work for this user and in this"
        " container (docker run --gpus all; --device /dev/kfd --device /dev/dri)"
        if fits
        else install(sights)
    )
    return codes.DEVICE_UNUSED(
        "torch", "; ".join(filter(None, (warnings, witnesses))), remedy=hint, or_cpu=OR_CPU
    )


def hiding(sights: ProbeResults, environ: Mapping[str, str]) -> str:
    """Return the variable that hides all cards, empty if none does."""
    for variable in (name for kind in KINDS.values() for name in kind.visible if name in environ):
        if environ[variable].strip().lower() in NO_CARD:
            return variable
    cards = sights.of_tools
    return (
        CUDA.visible[0] if cards and CUDA.visible[0] in environ and not visible_cards(cards, environ) else ""
    )


def undriven(label: str) -> Diagnostic:
    """Return the error for an accelerator of a kind that Paceline cannot train on."""
    return codes.DEVICE_UNDRIVEN("torch", label, named=label)


def no_kernels(device: ProbedDevice, sights: ProbeResults) -> Diagnostic:
    """Return the error for a card for which this torch has no code."""
    assert sights.torch is not None
    generation = device.arch or f"compute capability {device.capability}"
    what = f"this torch has no kernels for {device.name} ({generation})"
    has = ", ".join(sights.torch.arch_list)
    able = device.capability
    if able is not None and able < _OLDEST_CARD:
        hint = "no current torch has code for it: use another card"
    elif able is not None and able < _FIRST_OF_13:
        hint = f"{_forced(sights)} --index-url {_WHEELS}/{_LAST_FOR_OLD} ({_GET_STARTED})"
    elif able is not None and sights.wheel.cuda and not sights.wheel.cuda.startswith("13"):
        hint = f"{install(sights)} ({_GET_STARTED})"
    else:
        hint = f"use a torch with code for it ({_GET_STARTED})"
    return codes.DEVICE_ARCH(
        what, "torch", f"torch {sights.torch.version} has code for {has}", f"{hint}; {OR_CPU}"
    )


def _old_driver(sights: ProbeResults) -> Diagnostic | None:
    driver = sights.nvidia.driver if sights.nvidia else ""
    built, warnings = sights.wheel.cuda, sights.torch.warnings if sights.torch else ""
    oldest = OLDEST_DRIVER.get(int(built.partition(".")[0])) if built else None
    runs = _number(driver)
    if "too old" not in warnings and not (oldest and runs and runs < oldest):
        return None
    return codes.DEVICE_DRIVER_OLD(
        "nvidia-smi",
        warnings or f"driver {driver}, torch {sights.wheel.version}",
        driver=f" {driver}" if driver else "",
        built=built,
        hint=f"install a driver from {oldest:.0f} on, or {install(sights)}; {OR_CPU}"
        if oldest
        else install(sights),
    )


def install(sights: ProbeResults) -> str:
    """Return the command that installs a torch for the accelerator that is there."""
    torch = _forced(sights)
    if sights.nodes.amd and not sights.nodes.nvidia:
        return f"{torch} --index-url {_WHEELS}/rocm… ({_GET_STARTED})"
    runs = _number(sights.nvidia.driver) if sights.nvidia else None
    if runs is not None and runs < OLDEST_DRIVER[12]:  # for none of the wheels that current torch has
        return f"install a driver from {OLDEST_DRIVER[12]:g} on, then {torch} --index-url {_WHEELS}/cu126"
    if runs is not None and runs < OLDEST_DRIVER[13]:
        return f"{torch} --index-url {_WHEELS}/cu126 (driver {runs:g} runs CUDA 12, not 13)"
    return f"{torch} --index-url {_WHEELS}/cu130"


def _forced(sights: ProbeResults) -> str:
    version = sights.wheel.version.partition("+")[0]
    return f"pip install --force-reinstall torch{f'=={version}' if version else ''}"


def _witnesses(sights: ProbeResults) -> str:
    """Return the evidence of an accelerator: device files, or a driver's tool."""
    nodes = sights.nodes
    files = {
        "/dev/nvidia*": nodes.nvidia,
        "/dev/kfd": nodes.amd,
        "/dev/davinci*": nodes.ascend,
        "/dev/hl*": nodes.gaudi,
    }
    seen = [f"{path}: {count}" for path, count in files.items() if count]
    for name, tool in (("nvidia-smi", sights.nvidia), ("rocm-smi", sights.amd)):
        if tool and tool.devices:
            seen.append(f"{name}: {', '.join(dict.fromkeys(card.name for card in tool.devices))}")
        elif tool:
            seen.append(tool.failure if name in tool.failure else f"{name}: {tool.failure}")
    return "; ".join(seen)


def _number(version: str) -> float | None:
    match = re.match(r"\d+(\.\d+)?", version)
    return float(match[0]) if match else None
