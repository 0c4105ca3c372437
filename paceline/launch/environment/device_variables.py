"""Variables that a rank sets for its accelerator before torch is imported, unless the user has set them."""

from __future__ import annotations

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
#: Unless the user asks for more: c10d's warnings about addresses and closed connections are pages
QUIET_TORCH = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
_DETERMINISTIC = {
    "CUBLAS_WORKSPACE_CONFIG": (":4096:8", "cuBLAS is deterministic only with workspaces of its own"),
    "FLASH_ATTENTION_DETERMINISTIC": ("1", "Transformers' flash attention sums in one order"),
}
_FLIGHT_RECORDER = {
    "TORCH_FR_BUFFER_SIZE": (FLIGHT_ENTRIES, "records the last collectives"),
    "TORCH_NCCL_DUMP_ON_TIMEOUT": ("1", "writes them at a time-out"),
}
# GeForce cards without peer-to-peer copies, which drivers before this one offered to NCCL all the same
_WITHOUT_P2P, _REPORTS_P2P = ("RTX 40", "RTX 4090"), (550, 40)


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
    kind, settings = kind_of(device), dict[str, tuple[str, str]]()
    if kind is CPU:
        why = "rows of varying length do not fill the memory with kernels for each length"
        settings = dict.fromkeys(PRIMITIVES, (_PRIMITIVES_KEPT, why))
    elif kind is CUDA:
        on_windows = (root / "dev/dxg").exists()
        if not installed_wheel().hip and not on_windows and not any(name in environ for name in ALLOCATOR):
            why = "rows of varying length do not fragment the allocator's memory"
            settings[ALLOCATOR[0]] = ("expandable_segments:True", why)
        if deterministic:
            settings |= _DETERMINISTIC
        if world_size > 1:
            dumps = str(run.events_dir / "nccl_trace_rank_")
            settings |= {**_FLIGHT_RECORDER, "TORCH_FR_DUMP_TEMP_FILE": (dumps, "where they are written")}
        if world_size > 1 and _hangs_on_p2p(root):
            why = "cards of this series have no peer-to-peer copies, but this driver offers them"
            settings["NCCL_P2P_DISABLE"] = ("1", why)
    return {name: setting for name, setting in settings.items() if name not in environ}


def _hangs_on_p2p(root: Path) -> bool:
    """Whether this node's GeForce cards lack peer-to-peer copies although their driver reports them."""
    names = [
        line.partition(":")[2].strip()
        for path in (root / "proc/driver/nvidia/gpus").glob("*/information")
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.startswith("Model:")
    ]
    version = tuple(int(part) for part in driver_version(root).split(".")[:2] if part.isdigit())
    return bool(version) and version < _REPORTS_P2P and any(card in n for n in names for card in _WITHOUT_P2P)
