"""Choose a run's devices, with their memory and precision, from the probe results. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.plan import codes
from paceline.plan.hardware import unusable_reasons
from paceline.plan.hardware.device_kinds import CPU, CUDA, KINDS, UNDRIVEN, DeviceKind
from paceline.plan.hardware.probe_results import (
    ProbedDevice,
    ProbeResults,
    best_set,
    computes_bf16,
    runs_on,
    taken_bytes,
    usable_bytes,
    visible_cards,
    with_tool_memory,
)

GIB = 2**30
FP16_CAPABILITY = 5.3


@dataclass(frozen=True)
class DeviceSelection:
    """The devices of a run on this node.

    - ``used``: their indices among the ``visible`` ones
    - ``note``: why these were chosen
    - ``findings``: errors where an accelerator would lie idle, warnings where one is used with less than it
      has
    """

    kind: DeviceKind
    used: tuple[int, ...] = ()
    devices: tuple[ProbedDevice, ...] = ()
    note: str = ""
    findings: tuple[Diagnostic, ...] = ()
    hip: bool = False
    visible: int = 0

    @property
    def memory_bytes(self) -> int | None:
        """The smallest memory among them, less the memory of other processes; None if unknown."""
        sizes = [left for device in self.devices if (left := usable_bytes(device)) is not None]
        return min(sizes) if len(sizes) == len(self.devices) and sizes else None

    @property
    def device_indices(self) -> tuple[int, ...]:
        """``used`` where it is not simply every visible device."""
        return () if self.visible == len(self.used) else self.used

    @property
    def weakest(self) -> ProbedDevice:
        return min(self.devices, key=lambda device: (device.capability or 0.0, device.total_bytes or 0))

    @property
    def bf16(self) -> bool:
        """Whether every device has bf16 itself: ``torch.cuda.is_bf16_supported()`` counts emulation."""
        return all(computes_bf16(device, self.kind) for device in self.devices)

    @property
    def fp16(self) -> bool:
        return all((device.capability or 9.0) >= FP16_CAPABILITY for device in self.devices)


def choose(sights: ProbeResults, environ: Mapping[str, str]) -> DeviceSelection:
    """Return the devices of a run, by torch's answer if there is one, else by the driver's tool."""
    torch = sights.torch
    if torch is not None and torch.type in KINDS and torch.devices:
        assert torch.type is not None
        return _by_torch(sights, KINDS[torch.type], environ)
    if torch is not None and torch.type is not None:
        label = f"{UNDRIVEN[torch.type]} ({torch.type})" if torch.type in UNDRIVEN else torch.type
        return DeviceSelection(
            CPU, note=f"torch drives {label}", findings=(unusable_reasons.undriven(label),)
        )
    wheel = sights.wheel
    drivable = [t for t, built in ((sights.nvidia, wheel.cuda), (sights.amd, wheel.hip)) if t and built]
    listed = sights.of_tools if not wheel.version else tuple(card for t in drivable for card in t.devices)
    cards = visible_cards(listed, environ)
    if torch is None and cards:
        return _by_tool(sights, cards)
    if sights.nodes.certain or sights.of_tools:
        finding = unusable_reasons.idle(sights, environ)
        return DeviceSelection(CPU, note=finding.what, findings=(finding,))
    return DeviceSelection(
        CPU, note="there is no accelerator: no device file, and no driver's tool lists one"
    )


def _by_torch(sights: ProbeResults, kind: DeviceKind, environ: Mapping[str, str]) -> DeviceSelection:
    torch = sights.torch
    assert torch is not None
    devices = with_tool_memory(torch.devices, sights)
    able = tuple(i for i, device in enumerate(devices) if runs_on(device, torch.arch_list))
    if not able:
        finding = unusable_reasons.no_kernels(devices[0], sights)
        return DeviceSelection(CPU, note=finding.what, findings=(finding,))
    restricted = any(environ.get(name) for name in kind.visible)  # the user's own choice of cards
    used = able if restricted and len(able) == len(devices) else best_set(devices, able)
    chosen = tuple(devices[i] for i in used)
    findings = [*_left_out(devices, used, kind, sights), *_taken(chosen, sights)]
    hip = bool(torch.hip)
    return DeviceSelection(
        kind,
        used,
        chosen,
        _note(chosen, kind, hip, f"torch {torch.version} sees"),
        tuple(findings),
        hip,
        len(devices),
    )


def _by_tool(sights: ProbeResults, cards: Sequence[ProbedDevice]) -> DeviceSelection:
    """Choose from the driver's tool alone, if torch is not installed or did not answer."""
    hip = sights.nvidia is None or cards[0] not in sights.nvidia.devices
    used = best_set(cards, tuple(range(len(cards))))
    chosen = tuple(cards[i] for i in used)
    findings = [*_left_out(cards, used, CUDA, sights), *_taken(chosen, sights)]
    tool = "rocm-smi" if hip else "nvidia-smi"
    why = sights.silence or "torch is not installed here"
    if sights.silence:
        findings.append(codes.DEVICE_TORCH_SILENT(tool, sights.silence, hint=unusable_reasons.SLOW_DRIVER))
    # CUDA counts the fastest cards first, the tool by their place on the bus
    return DeviceSelection(
        CUDA,
        tuple(range(len(used))),
        chosen,
        _note(chosen, CUDA, hip, f"{why}: {tool} lists"),
        tuple(findings),
        hip,
        len(cards),
    )


def _note(chosen: Sequence[ProbedDevice], kind: DeviceKind, hip: bool, by: str) -> str:
    many = f"{len(chosen)} {'ROCm' if hip else kind.label} device{'s' if len(chosen) > 1 else ''}"
    weakest = min((device.capability for device in chosen if device.capability), default=None)
    able = f", compute capability {weakest}" if weakest else ""
    arch = f", {chosen[0].arch}" if chosen[0].arch else ""
    return f"{by} {many}{able}{arch}"


def _left_out(
    devices: Sequence[ProbedDevice], used: Sequence[int], kind: DeviceKind, sights: ProbeResults
) -> list[Diagnostic]:
    others = [i for i in range(len(devices)) if i not in used]
    if not others:
        return []
    list_ = ",".join(map(str, range(len(devices))))
    what = (
        f"unequal cards: used {_names([devices[i] for i in used])}; left out"
        f" {_names([devices[i] for i in others])}{_held(devices[i] for i in others)}"
    )
    archs = sights.torch.arch_list if sights.torch else ()
    without = [devices[i] for i in others if not runs_on(devices[i], archs)]
    hint = (
        f"this torch has no kernels for {_names(without)}"
        if without
        else (
            f"set {kind.visible[0]}={list_} to use all of them, each with the memory and precision"
            " of the weakest"
        )
    )
    return [codes.DEVICE_MIXED(what, kind.visible[0], hint=hint, severity=Severity.WARNING)]


def _taken(chosen: Sequence[ProbedDevice], sights: ProbeResults) -> list[Diagnostic]:
    warnings = []
    for device in chosen:
        taken = taken_bytes(device)
        if taken:
            assert device.total_bytes is not None
            free = device.total_bytes - taken
            warnings.append(
                codes.DEVICE_MEMORY_TAKEN(
                    device.uuid,
                    f"{device.total_bytes / GIB:.1f} GiB in all",
                    taken=taken / GIB,
                    name=device.name,
                    free=free / GIB,
                )
            )
    return warnings


def _held(devices: Iterable[ProbedDevice]) -> str:
    taken = sum(map(taken_bytes, devices))
    return f", of which other processes hold {taken / GIB:.1f} GiB" if taken else ""


def _names(devices: Sequence[ProbedDevice]) -> str:
    counted = dict.fromkeys(device.name for device in devices)
    return ", ".join(
        f"{n} × {name}" if (n := sum(device.name == name for device in devices)) > 1 else name
        for name in counted
    )
