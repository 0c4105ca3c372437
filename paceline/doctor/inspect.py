"""Collect facts about this machine once, without torch in this process."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from paceline.launch.preflight.facts import infiniband, memlock_unlimited
from paceline.plan.hardware.choose_devices import DeviceSelection, choose
from paceline.plan.hardware.probe import cpu_count, host_memory_bytes, look
from paceline.plan.hardware.probe_results import ProbeResults
from paceline.plan.packages import MadeFor, made_for_another_torch

#: Packages that a run may use, by the name that pip knows.
_NAMES = (
    "torch transformers tokenizers safetensors peft bitsandbytes deepspeed triton torchao flash-attn"
    " liger-kernel vllm accelerate wandb mlflow swanlab trackio torch-npu"
)
PACKAGES = tuple(_NAMES.split())
_SECONDS = 20  # a driver that hangs must not hang the doctor
HOLDERS = (
    "nvidia-smi",
    "--query-compute-apps=pid,used_memory,process_name",
    "--format=csv,noheader,nounits",
)
_PEERS = ("nvidia-smi", "topo", "-p2p", "r")


@dataclass(frozen=True)
class Inspection:
    """The facts. Sizes in bytes; ``None``: unknown here.

    - ``host_bytes``, ``cores``: the host memory and cores that this process may use
    - ``memlock_bytes``: the memory that it may lock
    - ``holders``: (pid, bytes, program) of processes that hold a card's memory now
    - ``pairs``: pairs of cards, and how many of them copy to each other directly
    - ``packages``: installed versions by name
    - ``misfits``: packages compiled for another torch
    """

    sights: ProbeResults
    choice: DeviceSelection
    shm_bytes: int | None = None
    memlock_unlimited: bool = True
    memlock_bytes: int = 0
    infiniband: bool = False
    open_files: int = 0
    compiler: str = ""
    headers: str = ""
    holders: tuple[tuple[int, int, str], ...] = ()
    pairs: tuple[int, int] = (0, 0)
    packages: Mapping[str, str] = field(default_factory=dict)
    misfits: tuple[MadeFor, ...] = ()
    host_bytes: int = 0
    cores: int = 0
    python: str = ""


def inspect(environ: Mapping[str, str]) -> Inspection:
    """Inspect this machine. Starts the driver's tools, and torch if there is a device."""
    sights = look(environ)
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return Inspection(
        sights,
        choose(sights, environ),
        shm_bytes=_size_of(Path("/dev/shm")),
        memlock_unlimited=memlock_unlimited(),
        memlock_bytes=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        infiniband=infiniband(environ),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        compiler=environ.get("CC")
        or next((p for name in ("gcc", "cc", "clang") if (p := shutil.which(name))), ""),
        headers=str(headers) if headers.is_file() else "",
        holders=parse_holders(command_output(HOLDERS)),
        pairs=parse_pairs(command_output(_PEERS)),
        packages=_packages(),
        misfits=tuple(made_for_another_torch()),
        host_bytes=host_memory_bytes(),
        cores=cpu_count(),
        python=platform.python_version(),
    )


def parse_holders(text: str) -> tuple[tuple[int, int, str], ...]:
    """Parse ``nvidia-smi --query-compute-apps``: (pid, bytes, program); 0 bytes if unknown."""
    holders = []
    for line in text.splitlines():
        fields = [part.strip() for part in line.split(",", 2)]
        if len(fields) == 3 and fields[0].isdecimal():
            mib = int(fields[1]) if fields[1].isdecimal() else 0
            holders.append((int(fields[0]), mib * 2**20, fields[2]))
    return tuple(holders)


def parse_pairs(text: str) -> tuple[int, int]:
    """Parse ``nvidia-smi topo -p2p r``: (number of ordered pairs of cards, number that read each other
    directly)."""
    pairs = direct = 0
    for line in text.splitlines():
        cells = line.split()
        if len(cells) > 2 and cells[0].startswith("GPU") and not cells[1].startswith("GPU"):
            others = [cell for cell in cells[1:] if cell != "X"]
            pairs, direct = pairs + len(others), direct + others.count("OK")
    return pairs, direct


def _size_of(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return None


def _packages() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def command_output(command: tuple[str, ...]) -> str:
    """Return a program's output; nothing if it is missing, fails or hangs."""
    program = shutil.which(command[0])
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, *command[1:]],
            capture_output=True,
            text=True,
            errors="replace",  # names of programs, in whatever encoding
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def environment() -> Mapping[str, str]:
    """Return a copy of this process's environment."""
    return dict(os.environ)
