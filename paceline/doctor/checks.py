"""Findings about a machine: each with what to do. Pure."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.units import human_bytes
from paceline.doctor import codes
from paceline.doctor.inspect import Inspection

SHM_BYTES = 1 << 30
OPEN_FILES = 4096
_ONLY = "only torch.compile and Triton kernels need it"


def findings(seen: Inspection) -> tuple[Diagnostic, ...]:
    """Return everything that stands in a training's way (errors), slows it or may end it later (warnings)."""
    return tuple(check for one in (_torch, _devices, _system, _compiler) for check in one(seen))


def _torch(seen: Inspection) -> Iterator[Diagnostic]:
    if not seen.sights.wheel.version:
        yield codes.DOCTOR_NO_TORCH("torch")
    yield from (one.finding() for one in seen.misfits)


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
