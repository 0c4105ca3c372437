"""Probe this machine's hardware without importing torch: ``/proc``, cgroup limits, and devices.

A separate process queries torch. An import of torch and the driver's start take seconds, so an answer with
devices is kept in the cache folder. The cache key holds everything that it depends on: the boot, the driver,
the installed torch, the querying code, the device files and the variables that hide devices. Free memory is
not kept.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.core.package import cache_folder
from paceline.core.plugins.tables import source_of
from paceline.plan.child_answer import child_reply, keep_answer, kept_answer
from paceline.plan.hardware.choose_devices import choose
from paceline.plan.hardware.device_files import (
    device_nodes,
    driver_version,
    flash_packages,
    installed_wheel,
    triton_obstacle,
)
from paceline.plan.hardware.device_kinds import CPU, KINDS, is_accelerator
from paceline.plan.hardware.probe_results import ProbeResults, TorchAnswer, Wheel
from paceline.plan.hardware.vendor_smi import nvidia_smi, rocm_smi
from paceline.plan.plan_json import from_json, to_json

TORCH_SECONDS = 120.0  # eight cards without the persistence daemon take half a minute
PROBE_MODULE = "paceline.runtime.device.probe"
ASKERS = (PROBE_MODULE, TorchAnswer.__module__)  # by name, so that they are found wherever they move
_BESIDE = (
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "HSA_OVERRIDE_GFX_VERSION",
    "ZE_FLAT_DEVICE_HIERARCHY",
)


def query_torch(
    environ: Mapping[str, str], wheel: Wheel, cache: Path | None = None
) -> tuple[TorchAnswer | None, str]:
    """Return (torch's answer or None, the reason for None).

    ``cache``: the folder of cached answers, None to query again. Takes at most ``TORCH_SECONDS``.
    """
    record = cache / "devices" / f"{_key(environ, wheel)}.json" if cache else None
    if record is not None and (answer := parse_answer(kept_answer(record))) is not None:
        devices = tuple(replace(device, free_bytes=None) for device in answer.devices)
        return replace(answer, fresh=False, devices=devices), ""
    answer, silence = query_child(environ)
    if answer is not None and answer.devices and record is not None:
        keep_answer(record, json.dumps(to_json(answer)))
    return answer, silence


def query_child(environ: Mapping[str, str]) -> tuple[TorchAnswer | None, str]:
    child = child_reply(PROBE_MODULE, environ, TORCH_SECONDS)
    if child.late:
        return None, f"torch found no devices within {TORCH_SECONDS:.0f} s"
    answer = parse_answer(child.line)
    return answer, "" if answer is not None else f"torch could not be asked: {child.end}"


def parse_answer(text: str) -> TorchAnswer | None:
    try:
        loaded = json.loads(text)
        return from_json(TorchAnswer, loaded) if isinstance(loaded, dict) else None
    except (ValueError, TypeError, KeyError):
        return None


def asker_identity() -> str:
    """Return the identity of the querying code, since another release's answer may be wrong."""
    return hashlib.sha256("".join(_text(source_of(name)) for name in ASKERS).encode()).hexdigest()


def _key(environ: Mapping[str, str], wheel: Wheel) -> str:
    names = {name for kind in KINDS.values() for name in kind.visible} | {*_BESIDE}
    facts: dict[str, object] = {
        "asker": asker_identity(),
        "host": socket.gethostname(),
        "boot": _text(Path("/proc/sys/kernel/random/boot_id")),
        "driver": driver_version() or _text(Path("/proc/driver/nvidia/version")),
        "python": sys.executable,
        "wheel": to_json(wheel),
        "hidden": {name: environ.get(name) for name in sorted(names)},
        "nodes": sorted(
            str(path) for name in ("nvidia*", "dri/*", "davinci*", "kfd") for path in Path("/dev").glob(name)
        ),
        # slices of a card come and go without a boot
        "slices": sorted(map(str, Path("/proc/driver/nvidia/capabilities").glob("gpu*/mig/*/*/access"))),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _text(path: Path | None) -> str:
    try:
        return path.read_text(encoding="utf-8").strip() if path else ""
    except OSError:
        return ""


OPTIONAL_PACKAGES = ("deepspeed", "peft", "bitsandbytes", "torch_xla")
# CPU flags for multiplying bf16 (fp16), or converting it in one instruction. bf16 is the upper half of
# fp32, so any CPU computes it correctly, if slowly; fp16 without a conversion instruction is refused.
BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16", "svebf16", "avx_ne_convert"})
FP16_FLAGS = frozenset({"f16c", "avx512_fp16", "amx_fp16", "asimdhp", "fphp"})
# Flags that torch's low-precision matmuls need (``models.compute_dtype.product_dtype`` asks torch).
PRODUCT_FLAGS = {
    "bfloat16": frozenset({"avx512_bf16", "amx_bf16", "bf16"}),
    "float16": frozenset({"avx512_fp16", "amx_fp16", "fphp"}),
}


@dataclass(frozen=True)
class Hardware:
    """One node's hardware; all nodes are assumed to be alike.

    ``memory_bytes``: one accelerator's memory (CPU: the host's); ``host_memory_bytes``: the node's, under its
    cgroup limit; ``num_devices``: accelerators of the node (CPU: 1). ``bf16``, ``fp16``: supported in
    hardware. ``peak_flops``: FLOP/s by dtype name from a data sheet, else None (the worker measures).
    ``emulated``: dtypes computed correctly but without native instructions. ``device_note``: why this device.
    ``capability``: CUDA compute capability (8.0), None elsewhere. ``packages``: installed ones of
    ``OPTIONAL_PACKAGES`` (None: unknown). ``products``: low-precision dtypes that this CPU multiplies in
    hardware (others: matmuls in fp32). ``device_indices``: of the visible devices those that train, empty
    for all. ``uncompiled``: why Triton's kernels cannot be compiled there, empty if they can or if that is
    unknown; ``flash_packages``: newer flash kernels that are installed (``device_files``).
    """

    device: str
    device_name: str
    num_devices: int
    memory_bytes: int
    host_memory_bytes: int
    num_nodes: int
    bf16: bool
    fp16: bool
    cpu_count: int
    peak_flops: Mapping[str, float] | None
    torch_backends: tuple[str, ...]
    device_note: str = ""
    emulated: tuple[str, ...] = ()
    capability: float | None = None
    packages: tuple[str, ...] | None = None
    products: tuple[str, ...] = ()
    device_indices: tuple[int, ...] = ()
    uncompiled: str = ""
    flash_packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class HardwareReport:
    """This node's hardware with findings, such as errors for an accelerator that would stay idle."""

    hardware: Hardware
    findings: tuple[Diagnostic, ...] = ()


def probe_hardware(
    environ: Mapping[str, str] | None = None, *, use_cpu: bool = False, num_nodes: int = 1, tasks: int = 1
) -> Hardware:
    """Return ``probe``'s hardware."""
    return probe(environ, use_cpu=use_cpu, num_nodes=num_nodes, tasks=tasks).hardware


def probe(
    environ: Mapping[str, str] | None = None, *, use_cpu: bool = False, num_nodes: int = 1, tasks: int = 1
) -> HardwareReport:
    """Return this node's hardware and the findings about it, without importing torch here.

    - ``environ``: this process's environment, for the child that asks torch and for the variables that hide
      devices
    - ``use_cpu``: ignore accelerators
    - ``tasks``: processes of this node, if a job manager shows each one separate devices

    Where a device file or a driver's tool shows an accelerator, a separate process queries torch, for at most
    two minutes. The answer is kept (``query_torch``).
    """
    host_memory, cpus = host_memory_bytes(), cpu_count()
    if use_cpu:
        return HardwareReport(_cpu(host_memory, cpus, num_nodes, "training.use_cpu is set"))
    variables = environ or {}
    choice = choose(look(variables), variables)
    if not is_accelerator(choice.kind.name):
        return HardwareReport(_cpu(host_memory, cpus, num_nodes, choice.note), choice.findings)
    weakest, count, note, memory = choice.weakest, len(choice.used), choice.note, choice.memory_bytes
    if memory is not None and weakest.shared and host_memory:  # under a container's limit, too
        memory = min(memory, host_memory)
    if count == 1 < tasks:
        count, note = tasks, f"{note}; one visible to each of the {tasks} tasks of a node"
    hardware = Hardware(
        device=choice.kind.name,
        device_name=weakest.name,
        num_devices=count,
        # a device without memory of its own (GB10, MPS) shares the host's
        memory_bytes=host_memory if memory is None else memory,
        host_memory_bytes=host_memory,
        num_nodes=num_nodes,
        bf16=choice.bf16,
        fp16=choice.fp16,
        cpu_count=cpus,
        peak_flops=peak_flops(weakest.name),
        torch_backends=tuple(dict.fromkeys(filter(None, (choice.kind.backend, CPU.backend)))),
        device_note=note,
        capability=weakest.capability,
        packages=installed_packages(),
        device_indices=choice.device_indices,
        uncompiled=triton_obstacle(),
        flash_packages=flash_packages(),
    )
    return HardwareReport(hardware, choice.findings)


def look(environ: Mapping[str, str]) -> ProbeResults:
    """Return the results of all probes. Starts processes only if a file or a program indicates a device."""
    wheel, nodes = installed_wheel(), device_nodes()
    sights = ProbeResults(wheel, nodes, nvidia_smi(), rocm_smi())
    hinted = nodes.certain or sights.of_tools or nodes.unsure or (nodes.renders and wheel.xpu)
    if not hinted or not wheel.version or wheel.on_cpu_only and not nodes.unsure:
        return sights
    answer, silence = query_torch(environ, wheel, cache_folder(environ))
    return replace(sights, torch=answer, silence=silence)


def _cpu(host_memory: int, cpus: int, num_nodes: int, note: str) -> Hardware:
    flags, name = cpu_flags()
    return Hardware(
        device=CPU.name,
        device_name=name,
        num_devices=1,
        memory_bytes=host_memory,
        host_memory_bytes=host_memory,
        num_nodes=num_nodes,
        bf16=True,
        fp16=bool(flags & FP16_FLAGS),
        cpu_count=cpus,
        peak_flops=None,
        torch_backends=(CPU.backend,),
        device_note=note,
        emulated=() if flags & BF16_FLAGS else ("bf16",),
        packages=installed_packages(),
        products=tuple(name for name, needed in PRODUCT_FLAGS.items() if flags & needed),
    )


def installed_packages() -> tuple[str, ...]:
    """Return which of ``OPTIONAL_PACKAGES`` are installed, without importing them."""
    return tuple(name for name in OPTIONAL_PACKAGES if importlib.util.find_spec(name) is not None)


def cpu_flags(text: str | None = None) -> tuple[frozenset[str], str]:
    """Return the CPU's feature flags and model name from ``/proc/cpuinfo``; empty and "CPU" without it."""
    if text is None:
        text = _read("/proc/cpuinfo")
    flags: frozenset[str] = frozenset()
    name = ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        key = key.strip().lower()
        if key in ("flags", "features") and not flags:
            flags = frozenset(value.split())
        elif key == "model name" and not name:
            name = value.strip()
    return flags, name or "CPU"


def host_memory_bytes(root: Path = Path("/")) -> int:
    """Return the memory available to this process; 0 if unknown.

    The least of the machine's memory and the limits (v1 and v2) of its cgroup and all parent groups.
    """
    total = 0
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            total = int(line.split()[1]) * 1024
    limits = [total] if total else []
    for path in _memory_limits(root):
        value = _read(path).strip()
        if value.isdigit() and (not total or int(value) < total):
            limits.append(int(value))
    return min(limits, default=0)


def _memory_limits(root: Path) -> Iterator[Path]:
    """Yield the limit files of this process' cgroup (``/proc/self/cgroup``) and of all its parents."""
    for line in ["0::/", "0:memory:/", *_read(root / "proc/self/cgroup").splitlines()]:
        _, controllers, group = (line.split(":", 2) + ["", ""])[:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        top, name = ("memory", "memory.limit_in_bytes") if controllers else ("", "memory.max")
        inside = Path(group.lstrip("/"))
        yield from (root / "sys/fs/cgroup" / top / folder / name for folder in (inside, *inside.parents))


def cpu_count(root: Path = Path("/")) -> int:
    """Return the cores available to this process: its affinity, limited by the cgroup's quota."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        count = os.cpu_count() or 1
    quota, _, period = _read(root / "sys/fs/cgroup/cpu.max").strip().partition(" ")
    if quota.isdigit() and period.isdigit() and int(period):
        count = min(count, max(1, int(quota) // int(period)))
    return max(1, count)


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# Dense tensor-core peaks with fp32 accumulation, FLOP/s (data sheets), matched in order by name.
PEAK_BF16_FLOPS: tuple[tuple[str, float], ...] = (
    ("GB300", 2.5e15),
    ("B300", 2.25e15),
    ("GB200", 2.5e15),
    ("B200", 2.25e15),
    ("H100 NVL", 835e12),
    ("H100 PCIe", 756e12),
    ("GH200", 989e12),
    ("H200", 989e12),
    ("H100", 989e12),
    ("H800", 989e12),
    ("H20", 148e12),
    ("A100", 312e12),
    ("A800", 312e12),
    ("A30", 165e12),
    ("A40", 149.7e12),
    ("A6000", 154.8e12),
    ("L40S", 362e12),
    ("L40", 181e12),
    ("L4", 121e12),
    ("A10G", 70e12),
    ("A10", 125e12),
    ("RTX 5090", 209.5e12),
    ("RTX 4090", 165.2e12),
    ("RTX 3090", 71e12),
)
PEAK_FP16_ONLY_FLOPS: tuple[tuple[str, float], ...] = (
    ("V100", 125e12),
    ("T4", 65e12),
    ("2080", 53.8e12),
    ("TITAN RTX", 65.2e12),
)


def peak_flops(name: str) -> dict[str, float] | None:
    """Return the dense peak in FLOP/s by dtype name, from the device's data sheet; None if unknown."""
    for card, value in PEAK_BF16_FLOPS:
        if card.lower() in name.lower():
            return {"bfloat16": value, "float16": value}
    for card, value in PEAK_FP16_ONLY_FLOPS:
        if card.lower() in name.lower():
            return {"float16": value}
    return None
