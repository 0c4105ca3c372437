"""Variables that a rank sets for its accelerator before torch is imported, unless the user has set them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from paceline.core.rundir import RunDir
from paceline.plan.hardware.device_files import driver_version, installed_wheel
from paceline.plan.hardware.device_kinds import CPU, CUDA, kind_of

ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
# oneDNN's cache of compiled kernels and torch's own: each keeps 1,024, and another shape is another kernel
PRIMITIVES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
_PRIMITIVES_KEPT = "64"  # a step on rows of one length needs about 20
FLIGHT_ENTRIES = "2000"  # collectives that torch's flight recorder remembers
# GeForce cards without peer-to-peer copies, which drivers before this one offered to NCCL all the same
_WITHOUT_P2P, _TELLS_P2P = ("RTX 40", "RTX 4090"), (550, 40)


def device_settings(
    environ: Mapping[str, str],
    device: str,
    world_size: int,
    run: RunDir,
    root: Path = Path("/"),
    *,
    deterministic: bool = False,
) -> dict[str, tuple[str, str]]:
    """Return (value, reason) by variable, for a rank that computes on ``device``.

    ``root``: where ``/proc`` and ``/sys`` lie; ``deterministic``: ``training.full_determinism``.
    """
    kind, found = kind_of(device), dict[str, tuple[str, str]]()
    if kind is CPU:
        why = "rows of varying length do not fill the memory with kernels for each length"
        found |= dict.fromkeys(PRIMITIVES, (_PRIMITIVES_KEPT, why))
    if kind is not CUDA:
        return {name: setting for name, setting in found.items() if name not in environ}
    on_windows = (root / "dev/dxg").exists()
    if not installed_wheel().hip and not on_windows and not any(name in environ for name in ALLOCATOR):
        why = "rows of varying length do not fragment the allocator's memory"
        found[ALLOCATOR[0]] = ("expandable_segments:True", why)
    if deterministic:
        why = "cuBLAS is deterministic only with workspaces of its own"
        found["CUBLAS_WORKSPACE_CONFIG"] = (":4096:8", why)
        found["FLASH_ATTENTION_DETERMINISTIC"] = ("1", "Transformers' flash attention sums in one order")
    if world_size > 1:
        found["TORCH_FR_BUFFER_SIZE"] = (FLIGHT_ENTRIES, "records the last collectives")
        found["TORCH_NCCL_DUMP_ON_TIMEOUT"] = ("1", "writes them at a time-out")
        found["TORCH_FR_DUMP_TEMP_FILE"] = (
            str(run.events_dir / "nccl_trace_rank_"),
            "where they are written",
        )
        if _hangs_on_p2p(root):
            why = "cards of this series have no peer-to-peer copies, but this driver offers them"
            found["NCCL_P2P_DISABLE"] = ("1", why)
    return {name: setting for name, setting in found.items() if name not in environ}


def apply_device_settings(settings: Mapping[str, tuple[str, str]]) -> None:
    """Set the variables in this process; call it before torch is imported."""
    for name, (value, _) in settings.items():
        os.environ.setdefault(name, value)


def _hangs_on_p2p(root: Path) -> bool:
    """Whether this node's GeForce cards lack peer-to-peer copies and their driver does not say so."""
    names = [
        line.partition(":")[2].strip()
        for path in (root / "proc/driver/nvidia/gpus").glob("*/information")
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.startswith("Model:")
    ]
    version = tuple(int(part) for part in driver_version(root).split(".")[:2] if part.isdigit())
    return bool(version) and version < _TELLS_P2P and any(one in n for n in names for one in _WITHOUT_P2P)
