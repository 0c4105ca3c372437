"""Ask torch for its accelerators in a process of its own, and keep the answer for this boot.

An import of torch and the driver's start take seconds, so that an answer with devices is kept in the cache
folder under everything that it depends on: the boot, the driver, the installed torch, what asks it, the
device files and the variables that hide devices. What may change while these stay (free memory) is not kept.
"""

from __future__ import annotations

import hashlib
import json
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from paceline.core.plugins.tables import source_of
from paceline.plan.child_answer import child_reply, keep_answer, kept_answer
from paceline.plan.hardware.device_files import driver_version
from paceline.plan.hardware.device_kinds import KINDS
from paceline.plan.hardware.probe_results import TorchAnswer, Wheel
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
    """Return (torch's answer, why there is none).

    ``cache``: the folder of kept answers, None to ask anew. Takes at most ``TORCH_SECONDS``.
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
    """What asks, and in which words it answers: another release's answer may be a wrong one."""
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
