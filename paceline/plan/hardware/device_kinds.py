"""The kinds of devices that Paceline drives: the one table of what differs between them.

Other code never compares device names; it reads the kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceKind:
    """A kind of device by torch's name for it.

    - ``label``: in sentences
    - ``backend``: of the process group, empty if one process alone can use it
    - ``package``: imported before torch knows the device
    - ``visible``: variables that restrict which devices a process sees, the first is the usual one
    - ``float64``: tensors of that dtype exist there
    - ``wire_float64``: the backend reduces them
    - ``varlen``: torch has a variable-length flash kernel for it
    - ``flex``: torch compiles ``flex_attention`` for it, forward and backward
    - ``pins``: copies from pinned host memory are faster
    - ``bitsandbytes``: has kernels for it
    - ``graphs``: torch captures its kernels in graphs
    - ``mixed_norms``: ``layer_norm`` takes 16-bit values and fp32 weights
    """

    name: str
    label: str
    backend: str
    package: str | None = None
    visible: tuple[str, ...] = ()
    float64: bool = True
    wire_float64: bool = True
    varlen: bool = False
    flex: bool = False
    pins: bool = True
    bitsandbytes: bool = True
    graphs: bool = False
    mixed_norms: bool = False


CPU = DeviceKind("cpu", "CPU", "gloo", pins=False, mixed_norms=True)
CUDA = DeviceKind(
    "cuda",
    "CUDA",
    "nccl",
    visible=("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    varlen=True,
    flex=True,
    graphs=True,
)
XPU = DeviceKind("xpu", "XPU", "xccl", visible=("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"))
NPU = DeviceKind(
    "npu",
    "NPU",
    "hccl",
    package="torch_npu",
    visible=("ASCEND_RT_VISIBLE_DEVICES",),
    wire_float64=False,
    bitsandbytes=False,
)
MPS = DeviceKind("mps", "MPS", "", float64=False, wire_float64=False, pins=False, bitsandbytes=False)

KINDS: Mapping[str, DeviceKind] = {kind.name: kind for kind in (CPU, CUDA, XPU, NPU, MPS)}
#: Accelerators that torch may name and that Paceline does not drive: they are refused by name.
UNDRIVEN: Mapping[str, str] = {
    "hpu": "Intel Gaudi",
    "mlu": "Cambricon",
    "musa": "Moore Threads",
    "xla": "TPU",
    "mtia": "MTIA",
    "neuron": "AWS Trainium",
    "sdaa": "Tecorigin",
    "vulkan": "Vulkan",
}


def kind_of(device: str) -> DeviceKind:
    """Return the kind of a device named as torch does, with or without an index.

    Raises KeyError for one that Paceline does not drive.
    """
    return KINDS[device.partition(":")[0]]


def is_accelerator(device: str) -> bool:
    """Whether a device of that name is anything else than the CPU."""
    return device.partition(":")[0] != CPU.name
