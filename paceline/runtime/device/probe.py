"""``python -m paceline.runtime.device.probe``: print the accelerators that torch sees, as JSON.

``plan.hardware.probe`` starts it. So planning itself needs no torch, and a driver that hangs or crashes
affects this process only.
"""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch

from paceline.launch.program import redacted
from paceline.plan.hardware.device_kinds import CUDA, KINDS, kind_of
from paceline.plan.hardware.probe_results import ProbedDevice, TorchAnswer
from paceline.plan.plan_json import to_json
from paceline.runtime.device.device import import_device_packages


@redacted
def main() -> int:
    """Print the answer as the last line of the output; return 0."""
    # A driver that is too old speaks in warnings only, while torch goes on without a device.
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        answer = probe_torch(import_device_packages())
    text = "; ".join(dict.fromkeys(str(warning.message).strip().splitlines()[0][:400] for warning in heard))
    text_heard = "; ".join(filter(None, (answer.warnings, text)))
    # The last line: libraries print what they like before it.
    print(json.dumps(to_json(replace(answer, warnings=text_heard))), flush=True)
    return 0


def probe_torch(refusal: str = "") -> TorchAnswer:
    """Return what torch sees. ``refusal``: a known problem of the driver."""
    plain = TorchAnswer(
        torch.__version__,
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        xpu=getattr(torch.version, "xpu", None),
        warnings=refusal,
    )
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return plain
    module = torch.get_device_module(accelerator)
    if accelerator.type not in KINDS:
        return replace(plain, type=accelerator.type)
    archs: tuple[str, ...] = ()
    with contextlib.suppress(Exception):
        archs = tuple(module.get_arch_list())
    count = torch.accelerator.device_count()
    seen = tuple(probe_device(accelerator.type, module, index) for index in range(count))
    return replace(plain, type=accelerator.type, devices=seen, nccl=nccl_version(), arch_list=archs)


def probe_device(kind: str, module: ModuleType, index: int) -> ProbedDevice:
    """Describe one device; a value that its module does not report is None."""
    properties: object = None
    with contextlib.suppress(Exception):
        properties = module.get_device_properties(index)
    name, total = kind_of(kind).label, None
    with contextlib.suppress(Exception):
        name = str(module.get_device_name(index))
    capability = None
    if kind == CUDA.name and torch.version.hip is None:
        with contextlib.suppress(Exception):
            major, minor = module.get_device_capability(index)
            capability = float(f"{major}.{minor}")
    total = getattr(properties, "total_memory", None)
    free = None
    with contextlib.suppress(Exception):
        free, all_of_it = torch.accelerator.get_memory_info(index)
        total = total or all_of_it
    if total is None:
        with contextlib.suppress(Exception):
            total = module.recommended_max_memory()
    uuid = str(getattr(properties, "uuid", "") or "")
    names = ("is_integrated", "is_integrated_gpu")  # of CUDA and ROCm, of XPU
    shared = any(getattr(properties, attribute, False) for attribute in names)
    if shared and free is not None:
        # the driver counts the host's cache of files as taken: after a checkpoint was read, most of it
        free = max(free, min(int(total or 0), available_host_memory()))
    return ProbedDevice(
        getattr(properties, "name", "") or name,
        None if total is None else int(total),
        None if free is None else int(free),
        capability,
        uuid,
        # torch's CUDA builds have this attribute too, and give the card's name there
        str(getattr(properties, "gcnArchName", "") or "").partition(":")[0] if torch.version.hip else "",
        None if capability is not None else computes_bf16(f"{kind}:{index}"),
        shared=shared,
    )


def available_host_memory(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return how much host memory processes can still allocate, caches included; 0 if it is unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in meminfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def computes_bf16(device: str) -> bool:
    try:
        # Tried, not asked: no common function of torch's device modules tells it. 8 × 8 sums of ones are
        # exact in bf16.
        ones = torch.ones(8, 8, dtype=torch.bfloat16, device=device)
        return bool((ones @ ones)[0, 0].item() == 8.0)
    except Exception:  # noqa: BLE001 - a device without it raises what its library likes
        return False


def nccl_version() -> str | None:
    """Return the version of NCCL (RCCL on AMD) that torch was built with; None without it."""
    try:
        version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001 - a build without NCCL has no such function
        return None
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


if __name__ == "__main__":
    sys.exit(main())
