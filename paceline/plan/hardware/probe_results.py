"""This machine's accelerators according to torch, the driver's tool and ``/dev``, and the usable ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.plan.hardware.device_kinds import CUDA, DeviceKind


@dataclass(frozen=True)
class ProbedDevice:
    """One accelerator. Memory in bytes, None if unknown.

    - ``capability``: CUDA compute capability (8.6)
    - ``arch``: AMD's name of it (``gfx942``)
    - ``uuid``: as ``CUDA_VISIBLE_DEVICES`` takes it
    - ``bf16``: whether the device computes in it, where torch itself must be asked
    - ``of``: the uuid of a MIG slice's card
    - ``mig``: the card is in MIG mode
    - ``shared``: its memory is the host's, as that of a GPU within the processor (GB10, Tegra, laptops)
    """

    name: str
    total_bytes: int | None = None
    free_bytes: int | None = None
    capability: float | None = None
    uuid: str = ""
    arch: str = ""
    bf16: bool | None = None
    of: str = ""
    mig: bool = False
    shared: bool = False


@dataclass(frozen=True)
class TorchAnswer:
    """What torch answered in a separate process.

    - ``type``: of the accelerator that it would take, None if it sees none
    - ``cuda``, ``hip``, ``xpu``, ``nccl``: versions that it was built with
    - ``arch_list``: the architectures that it has kernels for
    - ``warnings``: its warnings during the query
    - ``fresh``: free memory is current
    """

    version: str
    type: str | None = None
    devices: tuple[ProbedDevice, ...] = ()
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None
    nccl: str | None = None
    arch_list: tuple[str, ...] = ()
    warnings: str = ""
    fresh: bool = True


@dataclass(frozen=True)
class SmiAnswer:
    """The answer of nvidia-smi or rocm-smi; ``failure``: why there is none, else empty."""

    devices: tuple[ProbedDevice, ...] = ()
    driver: str = ""
    failure: str = ""


@dataclass(frozen=True)
class Wheel:
    """The installed torch as its files describe it, without an import. ``version``: empty if there is none.

    ``npu``: ``torch_npu`` is installed beside it.
    """

    version: str = ""
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None
    npu: bool = False

    @property
    def on_cpu_only(self) -> bool:
        """Whether this torch is there and can drive no accelerator at all (on Linux)."""
        return bool(self.version) and not (self.cuda or self.hip or self.xpu or self.npu)


@dataclass(frozen=True)
class DeviceFiles:
    """Device files: how many cards of each maker there are.

    ``unsure``: there may be one, which only torch can tell; ``renders``: a graphics device, usable only with
    torch's XPU build.
    """

    nvidia: int = 0
    amd: int = 0
    ascend: int = 0
    gaudi: int = 0
    unsure: bool = False
    renders: bool = False

    @property
    def certain(self) -> int:
        """Accelerators that certainly exist."""
        return self.nvidia + self.amd + self.ascend + self.gaudi


@dataclass(frozen=True)
class ProbeResults:
    """The results of all probes. ``torch``: None without an answer; ``silence``: why it did not answer."""

    wheel: Wheel = Wheel()
    nodes: DeviceFiles = DeviceFiles()
    nvidia: SmiAnswer | None = None
    amd: SmiAnswer | None = None
    torch: TorchAnswer | None = None
    silence: str = ""

    @property
    def of_tools(self) -> tuple[ProbedDevice, ...]:
        """What the driver's tools list."""
        return tuple(card for tool in (self.nvidia, self.amd) if tool for card in tool.devices)


TAKEN_BYTES = 2**30  # below it, what is taken of a card may be the driver's own
BF16_CAPABILITY = 8.0


def visible_cards(cards: Sequence[ProbedDevice], environ: Mapping[str, str]) -> tuple[ProbedDevice, ...]:
    """Return which of the tool's cards a process sees, as CUDA (HIP) reads ``CUDA_VISIBLE_DEVICES``.

    The list ends at the first unknown name. Of a card in MIG mode a process sees one slice: the requested
    one, else the first.
    """
    undivided = [card for card in cards if not card.of]
    slices = [card for card in cards if card.of]
    # AMD's runtime reads its own variables as well
    amd = bool(cards) and not cards[0].uuid.startswith(("GPU-", "MIG-"))
    variables = CUDA.visible[1:] if amd else ()
    names = next((environ[name] for name in (*variables, CUDA.visible[0]) if name in environ), None)
    chosen: list[ProbedDevice] = []
    if names is None:
        chosen = list(undivided)
    else:
        for name in (part.strip() for part in names.split(",")):
            matches = [
                card
                for i, card in enumerate(undivided)
                if name == str(i) or (name.startswith("GPU-") and _bare(card.uuid).startswith(_bare(name)))
            ] or [card for card in slices if name.startswith("MIG-") and card.uuid.startswith(name)]
            if not matches:
                break
            chosen.append(matches[0])
    parts = [
        one for card in chosen for one in ([card] if card.of else [s for s in slices if s.of == card.uuid])
    ]
    return tuple(parts[:1]) if parts else tuple(card for card in chosen if not card.mig)


def with_tool_memory(devices: Sequence[ProbedDevice], sights: ProbeResults) -> tuple[ProbedDevice, ...]:
    """Take free memory from the driver's tool where it lists the same card.

    It ran before torch, whose own context takes memory; and a cached answer has no free memory.
    """
    free = {_bare(card.uuid): card.free_bytes for card in sights.of_tools if card.uuid and not card.mig}
    return tuple(
        replace(device, free_bytes=there) if (there := free.get(_bare(device.uuid))) is not None else device
        for device in devices
    )


def taken_bytes(device: ProbedDevice) -> int:
    """Return the bytes of a device's memory that other processes hold; 0 if unknown or only the driver's."""
    if device.total_bytes is None or device.free_bytes is None:
        return 0
    taken = device.total_bytes - device.free_bytes
    return taken if taken > TAKEN_BYTES else 0


def usable_bytes(device: ProbedDevice) -> int | None:
    """Return the device's memory less the memory of other processes; None if unknown."""
    return None if device.total_bytes is None else device.total_bytes - taken_bytes(device)


def computes_bf16(device: ProbedDevice, kind: DeviceKind) -> bool:
    """Whether a device has bf16 products in hardware."""
    if device.capability is not None:
        return device.capability >= BF16_CAPABILITY
    if device.arch.startswith("gfx"):
        major, rest = device.arch[3:-2], device.arch[-2:]
        return major.isdigit() and (int(major) >= 11 or (major == "9" and int(rest, 16) >= 0x08))
    return bool(device.bf16)


def runs_on(device: ProbedDevice, arch_list: Sequence[str]) -> bool:
    """Whether torch has kernels for a device: compiled ones of its generation, or code compiled on first use.

    Machine code of capability X.Y runs on X.Z with Z ≥ Y (CUDA C++ programming guide, "Compute capability").
    """
    if not arch_list or (device.capability is None and not device.arch):
        return True
    if device.capability is None:
        return any(one.partition(":")[0] == device.arch for one in arch_list)
    major, minor = divmod(round(device.capability * 10), 10)
    for arch in arch_list:
        form, _, number = arch.rstrip("af").partition("_")
        if number.isdigit():
            has_major, has_minor = divmod(int(number), 10)
            machine_code = (
                form == "sm" and not arch.endswith("a") and has_major == major and has_minor <= minor
            )
            exact = form == "sm" and (has_major, has_minor) == (major, minor)
            if machine_code or exact or (form == "compute" and int(number) <= major * 10 + minor):
                return True
    return False


def best_set(devices: Sequence[ProbedDevice], able: Sequence[int]) -> tuple[int, ...]:
    """Return the ``able`` devices that train together; the weakest of a set limits all of it.

    Integrated GPUs are left out if there are cards, and cards without bf16 if others have it. Of the
    remaining sets it takes the one with the most total memory, counting each card as the set's smallest.
    """
    cards = [i for i in able if not devices[i].shared] or list(able)
    modern = [i for i in cards if (devices[i].capability or 9.0) >= BF16_CAPABILITY]
    among = modern or cards
    floors = {usable_bytes(devices[i]) or 0 for i in among}
    sets = [tuple(i for i in among if (usable_bytes(devices[i]) or 0) >= floor) for floor in sorted(floors)]
    return max(
        sets,
        key=lambda devices_of_set: (
            len(devices_of_set) * min(usable_bytes(devices[i]) or 0 for i in devices_of_set)
        ),
    )


def _bare(uuid: str) -> str:
    return uuid.removeprefix("GPU-").removeprefix("MIG-").removeprefix("0x")
