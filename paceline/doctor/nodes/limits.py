"""This node's limits, against what the plan needs: memory, processes, open files, /dev/shm."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.units import human_bytes
from paceline.doctor import codes as doctor_codes
from paceline.doctor.nodes import codes
from paceline.plan.cost.memory.fits import room_of

if TYPE_CHECKING:
    from paceline.plan.hardware.probe import Hardware
    from paceline.plan.plan import Plan

THREADS = 64  # of a rank: torch's, the loaders', NCCL's
_ADDRESSES = 16 << 30  # bytes of address space that a rank with torch reserves at least
#: Notes about one machine that matter on each of several.
_MATTERS = (doctor_codes.DOCTOR_SHM.name, doctor_codes.DOCTOR_FILES.name)


def of_several(findings: tuple[Diagnostic, ...]) -> list[Diagnostic]:
    """Return the findings about one machine that count for a node: notes about tools are left out."""
    kept = [f for f in findings if f.severity is not Severity.NOTE or f.code in _MATTERS]
    return [replace(f, severity=Severity.WARNING) if f.severity is Severity.NOTE else f for f in kept]


def memory_findings(plan: Plan, hardware: Hardware, available: int) -> Iterator[Diagnostic]:
    """Compare the host memory that is free now with what the plan needs in any case.

    The whole memory, and a cgroup's limit, are compared where the plan is made.
    """
    room = room_of(plan, hardware)
    need = max(room.start_host, room.states_host or 0) if room is not None else 0
    if 0 < available < need:
        yield codes.NODE_MEMORY(
            "host memory",
            f"{human_bytes(available)} of {human_bytes(hardware.host_memory_bytes)} are free",
            need=human_bytes(need),
        )


def limit_findings(ranks: int) -> Iterator[Diagnostic]:
    """Look at the limits of this process, which the ``ranks`` of this node inherit."""
    addresses = resource.getrlimit(resource.RLIMIT_AS)[0]
    if addresses != resource.RLIM_INFINITY:
        severity = Severity.ERROR if addresses < _ADDRESSES else Severity.WARNING
        yield codes.NODE_ADDRESSES("ulimit -v", human_bytes(addresses), severity=severity)
    processes = process_limit()
    if processes is not None and processes < ranks * THREADS:
        yield codes.NODE_PROCESSES(
            "ulimit -u, pids.max", f"{processes} can still be started", need=ranks * THREADS, ranks=ranks
        )


def process_limit(root: Path = Path("/")) -> int | None:
    """Return how many processes and threads the cgroup or the user may still start; None without a limit."""
    left = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, group = (line.split(":", 2) + ["", ""])[:3]
        if controllers in ("", "pids"):
            top = root / "sys/fs/cgroup" / controllers
            for folder in (top / group.lstrip("/"), *(top / group.lstrip("/")).parents):
                most, now = _read(folder / "pids.max").strip(), _read(folder / "pids.current").strip()
                if most.isdecimal() and now.isdecimal():
                    left.append(int(most) - int(now))
                if folder == top:
                    break
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if soft != resource.RLIM_INFINITY:
        left.append(soft)
    return min(left, default=None)


def memory_available(root: Path = Path("/")) -> int:
    """Return the bytes of host memory that are free or can be freed; 0 if unknown."""
    lines = _read(root / "proc/meminfo").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


#: Variables that change a run and should be alike on all nodes.
_PREFIXES = (
    *("NCCL_", "GLOO_", "TORCH_", "PYTORCH_", "CUDA_", "OMP_", "MKL_", "UCX_", "FI_", "HF_HUB_"),
    *("TRANSFORMERS_", "TOKENIZERS_", "PYTHONHASHSEED", "LD_PRELOAD", "LD_LIBRARY_PATH"),
)
#: They may differ: names of interfaces and devices, and folders of a node's own.
_OWN = ("_IFNAME", "_HCA", "VISIBLE_DEVICES", "_DIR", "_HOME", "_FILE", "_CACHE", "_TOKEN")


def environment_facts(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are compared over the nodes."""
    return {
        name: value[:200]
        for name, value in sorted(environ.items())
        if name.startswith(_PREFIXES) and not name.endswith(_OWN)
    }
