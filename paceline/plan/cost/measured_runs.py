"""The ledger of predicted and measured memory and speed: one JSON line per run, and corrections from them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

KEPT = 500  # maximum number of lines; older ones are dropped
NEWEST_RUNS = 12  # number of newest runs of a machine from which corrections are computed
BOUNDS = (0.5, 2.0)  # corrections are clamped: a larger error is not a matter of calibration
GIB = 2**30


@dataclass(frozen=True)
class LedgerEntry:
    """One run: bytes of the fullest rank, tokens per second over all ranks.

    None: not predicted, or not measured.
    """

    time: str
    machine: str
    model: str
    strategy: str
    ranks: int
    predicted_bytes: float | None
    measured_bytes: float | None
    predicted_speed: float | None
    measured_speed: float | None
    run: str = ""

    @property
    def memory_ratio(self) -> float | None:
        """Measured / predicted; None if either is missing."""
        return _ratio(self.measured_bytes, self.predicted_bytes)

    @property
    def speed_ratio(self) -> float | None:
        """Measured / predicted; None if either is missing."""
        return _ratio(self.measured_speed, self.predicted_speed)


def _ratio(measured: float | None, predicted: float | None) -> float | None:
    return measured / predicted if measured and predicted else None


def read(path: Path) -> list[LedgerEntry]:
    """Return all entries, oldest first. Unreadable lines are skipped; a missing file is an empty ledger."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [entry for entry in map(_entry, lines) if entry is not None]


def _entry(line: str) -> LedgerEntry | None:
    try:
        # A line of another release lacks or has a field: it is skipped, not an error.
        return LedgerEntry(**json.loads(line))
    except (ValueError, TypeError):
        return None


def append(path: Path, entry: LedgerEntry) -> None:
    """Append one entry, keeping at most ``KEPT`` lines; the file is replaced atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(
        json.dumps(asdict(e), ensure_ascii=False) + "\n" for e in (*read(path)[-(KEPT - 1) :], entry)
    )
    # Rewritten whole, since the oldest lines go.
    staged = path.with_name(f".{path.name}.new")
    staged.write_text(text, encoding="utf-8")
    staged.replace(path)


def corrections(entries: Iterable[LedgerEntry], machine: str) -> tuple[float, float]:
    """Return (memory factor, time factor) for ``machine``: medians over its newest runs; 1 without any."""
    newest = [entry for entry in entries if entry.machine == machine][-NEWEST_RUNS:]
    memory = _bounded([e.memory_ratio for e in newest if e.memory_ratio])
    speed = _bounded([e.speed_ratio for e in newest if e.speed_ratio])
    # Speeds are tokens a second: their ratio is the inverse of the time's.
    return memory, 1 / speed


def _bounded(ratios: Sequence[float]) -> float:
    low, high = BOUNDS
    return min(high, max(low, statistics.median(ratios))) if ratios else 1.0


def table(entries: Sequence[LedgerEntry]) -> str:
    """Return the newest 40 entries as text, newest last, and the corrections for each machine."""
    if not entries:
        return "The ledger is empty: every finished run adds a line.\n"
    lines = [f"{'when':<17} {'machine':<26} {'strategy':<9} {'memory GiB':>15} {'tokens/s':>17}  model"]
    for e in entries[-40:]:
        memory = f"{_number(e.predicted_bytes, GIB)} → {_number(e.measured_bytes, GIB)}"
        speed = f"{_number(e.predicted_speed, 1)} → {_number(e.measured_speed, 1)}"
        lines.append(
            f"{e.time[:16]:<17} {e.machine[:26]:<26} {e.strategy[:9]:<9} {memory:>15} {speed:>17} "
            f" {Path(e.model).name[:12]}"
        )
    lines.append(
        "predicted → measured; later plans on a machine are multiplied by the factors of its newest runs:"
    )
    for machine in dict.fromkeys(e.machine for e in entries):
        memory_factor, time_factor = corrections(entries, machine)
        lines.append(f"  {machine}: memory × {memory_factor:.2f}, time × {time_factor:.2f}")
    return "\n".join(lines) + "\n"


def _number(value: float | None, unit: float) -> str:
    if value is None:
        return "?"
    return f"{value / unit:.1f}" if value / unit < 1000 else f"{value / unit:,.0f}"


def to_json(entries: Sequence[LedgerEntry]) -> list[Mapping[str, float | str | None]]:
    """Return the entries with their ratios as plain JSON types."""
    return [{**asdict(e), "memory_ratio": e.memory_ratio, "speed_ratio": e.speed_ratio} for e in entries]
