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
        yield codes.DOCTOR_NO_TORCH(
            "torch is not installed here",
            "torch",
            hint="install Paceline with its dependencies, as README shows",
        )
    yield from (one.finding() for one in seen.misfits)


def _devices(seen: Inspection) -> Iterator[Diagnostic]:
    yield from seen.choice.findings
    pairs, direct = seen.pairs
    if pairs and direct < pairs:
        yield codes.DOCTOR_P2P(
            "not all cards copy to each other directly",
            "nvidia-smi topo -p2p r",
            f"{direct} of {pairs} pairs do",
            "set NCCL_P2P_DISABLE=1 if NCCL hangs at its first all-reduce; else do nothing",
            Severity.WARNING if direct == 0 else Severity.NOTE,
        )


def _system(seen: Inspection) -> Iterator[Diagnostic]:
    several = len(seen.choice.devices) > 1
    if seen.shm_bytes is not None and seen.shm_bytes < SHM_BYTES:
        yield codes.DOCTOR_SHM(
            "/dev/shm is small for ranks that exchange data through it",
            "/dev/shm",
            f"{seen.shm_bytes / 2**20:.0f} MiB",
            "use docker run --shm-size=8g or --ipc=host; in Kubernetes an emptyDir of medium Memory there",
            Severity.WARNING if several else Severity.NOTE,
        )
    if seen.infiniband and not seen.memlock_unlimited:
        yield codes.DOCTOR_MEMLOCK(
            "locked memory is limited beside an InfiniBand device",
            "ulimit -l",
            human_bytes(seen.memlock_bytes),
            "use ulimit -l unlimited (docker run --ulimit memlock=-1), or set NCCL_IB_DISABLE=1",
            Severity.WARNING,
        )
    if seen.open_files < OPEN_FILES:
        yield codes.DOCTOR_FILES(
            "the limit of open files is low",
            "ulimit -n",
            str(seen.open_files),
            "use ulimit -n 65536 for jobs of hundreds of ranks",
            Severity.NOTE,
        )


def _compiler(seen: Inspection) -> Iterator[Diagnostic]:
    if not seen.compiler:
        yield codes.DOCTOR_COMPILER(
            "there is no C compiler",
            "PATH",
            "no gcc, cc or clang",
            f"use apt-get install gcc, or set CC to the path of one; {_ONLY}",
            Severity.NOTE,
        )
    if not seen.headers:
        yield codes.DOCTOR_HEADERS(
            "Python.h is missing",
            sysconfig.get_path("include"),
            found=f"Python {seen.python}",
            hint=f"use apt-get install python3-dev of this version; {_ONLY}",
            severity=Severity.NOTE,
        )
