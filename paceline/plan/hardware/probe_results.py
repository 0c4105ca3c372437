"""What this machine's accelerators look like to each witness: torch, the driver's tool, ``/dev``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SeenDevice:
    """One accelerator. Memory in bytes, None where the witness does not tell it.

    ``capability``: CUDA compute capability (8.6); ``arch``: AMD's name of it (``gfx942``); ``uuid``: as
    ``CUDA_VISIBLE_DEVICES`` takes it; ``bf16``: whether the device computes in it, where torch itself must be
    asked; ``of``: the uuid of the card that a MIG slice is a part of; ``mig``: the card is in MIG mode;
    ``shared``: its memory is the host's, as that of a GPU within the processor (GB10, Tegra, laptops).
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
    """What torch said in a process of its own.

    ``type``: of the accelerator that it would take, None if it sees none; ``cuda``, ``hip``, ``xpu``,
    ``nccl``: versions that it was built with; ``arch_list``: what it has kernels for; ``warnings``: what it
    said while it looked; ``fresh``: free memory is as it is now.
    """

    version: str
    type: str | None = None
    devices: tuple[SeenDevice, ...] = ()
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None
    nccl: str | None = None
    arch_list: tuple[str, ...] = ()
    warnings: str = ""
    fresh: bool = True


@dataclass(frozen=True)
class SmiAnswer:
    """What nvidia-smi or rocm-smi told; ``failure``: why it told nothing, empty if it answered."""

    devices: tuple[SeenDevice, ...] = ()
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
class Nodes:
    """Device files: how many cards of each maker there are.

    ``unsure``: there may be one, torch knows; ``renders``: a graphics device, which only torch's XPU build
    would compute on.
    """

    nvidia: int = 0
    amd: int = 0
    ascend: int = 0
    gaudi: int = 0
    unsure: bool = False
    renders: bool = False

    @property
    def certain(self) -> int:
        """Accelerators that are there beyond doubt."""
        return self.nvidia + self.amd + self.ascend + self.gaudi


@dataclass(frozen=True)
class Sights:
    """All that was seen. ``torch``: None without an answer; ``silence``: why it did not answer."""

    wheel: Wheel = Wheel()
    nodes: Nodes = Nodes()
    nvidia: SmiAnswer | None = None
    amd: SmiAnswer | None = None
    torch: TorchAnswer | None = None
    silence: str = ""

    @property
    def of_tools(self) -> tuple[SeenDevice, ...]:
        """What the driver's tools list."""
        return tuple(card for tool in (self.nvidia, self.amd) if tool for card in tool.devices)
