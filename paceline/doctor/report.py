"""The report on the machine as text and as JSON."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator, Sequence

from paceline.core.diagnostics import Diagnostic, Severity, render_all
from paceline.core.json_types import Json
from paceline.core.units import human_bytes
from paceline.doctor import codes
from paceline.doctor.inspect import Inspection
from paceline.plan.hardware.device_kinds import is_accelerator
from paceline.plan.hardware.probe_results import ProbedDevice, SmiAnswer, taken_bytes
from paceline.plan.model.kernels import AttentionCall, attention_kernel
from paceline.plan.plan_json import to_json

GIB = 2**30
_WIDTH = 128  # head dim that the kernel is told for


def text(seen: Inspection, problems: Sequence[Diagnostic]) -> str:
    """Return the report: one line per fact, then the findings."""
    lines = [f"{subject:<11}{fact}" for subject, fact in _facts(seen)]
    return "\n".join([*lines, render_all(problems) if problems else "no problems found"])


def as_json(seen: Inspection, problems: Sequence[Diagnostic]) -> dict[str, Json]:
    """Return the report as plain JSON types."""
    choice = seen.choice
    return {
        "device": choice.kind.name,
        "devices": [device.name for device in choice.devices],
        "memory_bytes": choice.memory_bytes,
        "precision": precision(seen),
        "attention": kernel(seen),
        "seen": to_json(seen.sights),
        "shm_bytes": seen.shm_bytes,
        "memlock_unlimited": seen.memlock_unlimited,
        "memlock_bytes": None if seen.memlock_unlimited else seen.memlock_bytes,
        "infiniband": seen.infiniband,
        "open_files": seen.open_files,
        "compiler": seen.compiler,
        "python_headers": seen.headers,
        "holders": [{"pid": pid, "bytes": size, "program": name} for pid, size, name in seen.holders],
        "p2p_pairs": {"all": seen.pairs[0], "direct": seen.pairs[1]},
        "packages": dict(seen.packages),
        "host_memory_bytes": seen.host_bytes,
        "cpu_cores": seen.cores,
        "python": seen.python,
        "findings": [finding.to_json() for finding in problems],
    }


def precision(seen: Inspection) -> str:
    """Return the dtype that ``mixed_precision: auto`` can take on the devices."""
    choice = seen.choice
    if not is_accelerator(choice.kind.name):
        return "float32"
    return "bfloat16" if choice.bf16 else "float16" if choice.fp16 else "float32"


def kernel(seen: Inspection) -> str:
    """Return the attention kernel of a plain model there, with the reason."""
    choice = seen.choice
    capability = choice.weakest.capability if choice.devices else None
    call = AttentionCall(_WIDTH, _WIDTH)
    name, why = attention_kernel(choice.kind.name, capability, precision(seen), call)
    return f"{name}: {why}"


def _facts(seen: Inspection) -> Iterator[tuple[str, str]]:
    sights, choice = seen.sights, seen.choice
    yield "device", f"{choice.kind.name}: {choice.note}"
    for device in choice.devices:
        yield "", describe(device)
    yield "torch", _by_torch(seen)
    yield "nvidia-smi", _by_tool(sights.nvidia)
    yield "rocm-smi", _by_tool(sights.amd)
    nodes = {"nvidia": sights.nodes.nvidia, "amd": sights.nodes.amd, "ascend": sights.nodes.ascend}
    yield "/dev", ", ".join(f"{count} {name}" for name, count in nodes.items() if count) or "no accelerator"
    yield "precision", f"{precision(seen)} (what mixed_precision: auto takes here)"
    yield "attention", kernel(seen)
    yield from _in_use(seen)
    if seen.pairs[0]:
        yield "p2p", f"{seen.pairs[1]} of {seen.pairs[0]} pairs of cards copy directly"
    shm = "none" if seen.shm_bytes is None else f"{seen.shm_bytes / GIB:.1f} GiB"
    locked = "unlimited" if seen.memlock_unlimited else human_bytes(seen.memlock_bytes)
    ib = "yes" if seen.infiniband else "no"
    yield "host", f"{seen.cores} CPU cores, {human_bytes(seen.host_bytes)} of memory"
    yield "system", f"/dev/shm {shm}, locked memory {locked}, open files {seen.open_files}, InfiniBand {ib}"
    yield "compiler", f"{seen.compiler or 'no C compiler'}, {seen.headers or 'no Python.h'}"
    yield "python", f"{seen.python}, {sys.executable}"
    yield "packages", ", ".join(f"{name} {version}" for name, version in seen.packages.items()) or "none"


def _in_use(seen: Inspection) -> Iterator[tuple[str, str]]:
    """Return the processes that hold memory of the cards."""
    for pid, size, name in seen.holders:
        yield "in use", f"{size / GIB:.1f} GiB: {name} (pid {pid})"
    taken = sum(taken_bytes(device) for device in seen.choice.devices)
    if taken and not seen.holders:
        by = "this container does not see" if seen.sights.nvidia else "no tool here lists"
        yield "in use", f"{taken / GIB:.1f} GiB, by processes that {by}"


def describe(device: ProbedDevice) -> str:
    """Describe a device in one line: name, memory, free memory."""
    total = "memory unknown" if device.total_bytes is None else f"{device.total_bytes / GIB:.1f} GiB"
    free = "" if device.free_bytes is None else f", {device.free_bytes / GIB:.1f} GiB free now"
    able = f", compute capability {device.capability}" if device.capability else ""
    return f"{device.name}: {total}{free}{able}"


def _by_torch(seen: Inspection) -> str:
    wheel, answer = seen.sights.wheel, seen.sights.torch
    built = wheel.cuda and f"CUDA {wheel.cuda}" or wheel.hip and f"ROCm {wheel.hip}" or wheel.xpu and "XPU"
    version = f"{wheel.version} ({built or 'CPU'} build)" if wheel.version else "not installed"
    if answer is None:
        return f"{version}; {seen.sights.silence or 'not queried: no sign of a device that it supports'}"
    nccl = f"; NCCL {answer.nccl}" if answer.nccl else ""
    kept = "" if answer.fresh else "; queried earlier since the last boot"
    return f"{version}; sees {len(answer.devices)} {answer.type or 'accelerators'}{nccl}{kept}"


def _by_tool(tool: SmiAnswer | None) -> str:
    if tool is None:
        return "not installed"
    driver = f"driver {tool.driver}; " if tool.driver else ""
    return driver + (", ".join(card.name for card in tool.devices) or tool.failure)


SHM_BYTES = 1 << 30  # NCCL and data loaders share memory between ranks there
OPEN_FILES = 4096  # sockets of peers, data files and shards count
_ONLY = "only torch.compile and Triton kernels need it"


def findings(seen: Inspection) -> tuple[Diagnostic, ...]:
    """Return findings that prevent a training (errors), or slow it or may end it later (warnings)."""
    return tuple(check for one in (_torch, _devices, _system, _compiler) for check in one(seen))


def _torch(seen: Inspection) -> Iterator[Diagnostic]:
    if not seen.sights.wheel.version:
        yield codes.DOCTOR_NO_TORCH("torch")
    yield from (misfit.finding() for misfit in seen.misfits)


def _devices(seen: Inspection) -> Iterator[Diagnostic]:
    yield from seen.choice.findings
    pairs, direct = seen.pairs
    if pairs and direct < pairs:
        yield codes.DOCTOR_P2P(
            "nvidia-smi topo -p2p r",
            f"{direct} of {pairs} pairs do",
            severity=Severity.WARNING if direct == 0 else Severity.NOTE,
        )


def _system(seen: Inspection) -> Iterator[Diagnostic]:
    several = len(seen.choice.devices) > 1
    if seen.shm_bytes is not None and seen.shm_bytes < SHM_BYTES:
        yield codes.DOCTOR_SHM(
            "/dev/shm",
            f"{seen.shm_bytes / 2**20:.0f} MiB",
            severity=Severity.WARNING if several else Severity.NOTE,
        )
    if seen.infiniband and not seen.memlock_unlimited:
        yield codes.DOCTOR_MEMLOCK("ulimit -l", human_bytes(seen.memlock_bytes))
    if seen.open_files < OPEN_FILES:
        yield codes.DOCTOR_FILES("ulimit -n", str(seen.open_files))


def _compiler(seen: Inspection) -> Iterator[Diagnostic]:
    if not seen.compiler:
        yield codes.DOCTOR_COMPILER("PATH", "no gcc, cc or clang", only=_ONLY)
    if not seen.headers:
        yield codes.DOCTOR_HEADERS(sysconfig.get_path("include"), f"Python {seen.python}", only=_ONLY)
