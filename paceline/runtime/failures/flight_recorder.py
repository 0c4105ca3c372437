"""torch's flight recorder: which collective this rank waits in, and a file of the last ones.

Recorded if ``TORCH_FR_BUFFER_SIZE`` was set before torch was imported (``launch.device_settings``). Read as
JSON in this process; what torch itself writes at a time-out is a pickle, which nobody here opens.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from pathlib import Path

_SHOWN = 3


@dataclass(frozen=True)
class Collective:
    """An operation that this rank has begun and that has not ended. ``seconds``: for how long."""

    name: str
    number: int
    group: str
    sizes: str
    seconds: float

    def describe(self) -> str:
        of = f" of {self.sizes}" if self.sizes else ""
        return f"{self.name} {self.number}{of} in group {self.group or '?'} for {self.seconds:.0f} s"


def active(text: str | None = None, now_ns: int | None = None) -> list[Collective]:
    """Return the collectives under way, the longest first. ``text``: a dump, None for this process's own."""
    try:
        data = json.loads(dump_entries() if text is None else text)
        entries = [entry for entry in data.get("entries", ()) if not _ended(entry)]
    except (ValueError, AttributeError, TypeError):
        return []
    now = time.time_ns() if now_ns is None else now_ns
    found = []
    for entry in entries:
        group = entry.get("process_group") or ["", ""]
        shapes = [list(size) for size in entry.get("input_sizes") or ()]
        found.append(
            Collective(
                str(entry.get("profiling_name", "?")),
                int(entry.get("collective_seq_id") or entry.get("p2p_seq_id") or 0),
                str(group[-1] or group[0]),
                ", ".join(map(str, shapes[:_SHOWN])),
                max(0.0, (now - int(entry.get("time_created_ns", now))) / 1e9),
            )
        )
    return sorted(found, key=lambda one: -one.seconds)


def write_flight(path: Path) -> None:
    """Write the recorded collectives as JSON; nothing if none are recorded or the disk refuses."""
    text = dump_entries()
    if not json.loads(text or "{}").get("entries"):
        return
    with contextlib.suppress(OSError):
        path.write_text(text, encoding="utf-8")


def _ended(entry: dict[str, object]) -> bool:
    return bool(entry.get("retired")) or entry.get("state") == "completed"


def dump_entries() -> str:
    from torch._C import _distributed_c10d

    dump = getattr(_distributed_c10d, "_dump_fr_trace_json", None)
    try:
        return "" if dump is None else bytes(dump()).decode("utf-8", "replace")
    except RuntimeError:
        return ""
