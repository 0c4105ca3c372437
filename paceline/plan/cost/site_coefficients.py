"""Coefficients that a site has measured itself: factors on memory and time by card, with their runs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline.core.errors import ConfigError
from paceline.core.files import read_text
from paceline.core.json_types import as_object
from paceline.core.units import aligned
from paceline.plan import codes
from paceline.plan.cost.measured_runs import BOUNDS, GIB, LedgerEntry
from paceline.plan.plan_json import from_json

#: Runs that the plan's own coefficients count as: few runs do not outvote them (planner.md, What it learns).
PRIOR = 0.5


@dataclass(frozen=True)
class MeasuredRun:
    """A finished run: its plan beside what was measured, and where it ran.

    - ``card``: the catalogue's name of its accelerators, else the device's
    - ``paceline``, ``torch``: versions
    """

    entry: LedgerEntry
    card: str
    paceline: str
    torch: str

    def beside(self) -> str:
        """Return what was measured beside what the plan said."""
        entry = self.entry
        parts = []
        if entry.measured_bytes:
            parts.append(
                _beside(entry.measured_bytes / GIB, entry.predicted_bytes, GIB, "GiB a process", ".2f")
            )
        if entry.measured_speed:
            parts.append(_beside(entry.measured_speed, entry.predicted_speed, 1, "tokens/s", ",.0f"))
        return "; ".join(parts)


def _beside(measured: float, predicted: float | None, unit: float, word: str, digits: str) -> str:
    if not predicted:
        return f"{measured:{digits}} {word}, not planned"
    planned = predicted / unit
    return f"{measured:{digits}} {word} for {planned:{digits}} planned ({measured / planned - 1:+.0%})"


@dataclass(frozen=True)
class SiteCoefficients:
    """Factors on predicted memory and time on ``card``, from ``runs``; ``written``: when, as a date."""

    card: str
    memory_factor: float
    time_factor: float
    written: str
    runs: tuple[MeasuredRun, ...]

    @staticmethod
    def of(card: str, runs: Sequence[MeasuredRun], written: str) -> SiteCoefficients:
        """Fit both factors: the mean ratio in logarithms, with the plan's own coefficients as half a run."""
        memory = factor_of(run.entry.memory_ratio for run in runs)
        return SiteCoefficients(
            card, memory, 1 / factor_of(run.entry.speed_ratio for run in runs), written, tuple(runs)
        )

    def source(self, version: str) -> str:
        """Return where the factors are from, for a plan by Paceline ``version``."""
        versions = sorted({run.paceline for run in self.runs})
        other = f", measured by Paceline {', '.join(versions)}" if versions != [version] else ""
        return f"{len(self.runs)} calibrated run(s) on {self.card}, {self.written}{other}"


@dataclass(frozen=True)
class _CalibrationFile:
    note: str
    cards: tuple[SiteCoefficients, ...]


def factor_of(ratios: Iterable[float | None]) -> float:
    """Return the factor that measured / predicted ``ratios`` teach; 1 without any."""
    # Logarithms, so that twice and half as much cancel out.
    logs = [math.log(ratio) for ratio in ratios if ratio]
    low, high = BOUNDS
    return min(high, max(low, math.exp(sum(logs) / (len(logs) + PRIOR)))) if logs else 1.0


def with_runs(
    known: Mapping[str, SiteCoefficients], runs: Iterable[MeasuredRun], written: str
) -> dict[str, SiteCoefficients]:
    """Return ``known`` with further runs, fitted anew; a run that is given again replaces itself."""
    by_card: dict[str, dict[str, MeasuredRun]] = {}
    for run in runs:
        by_card.setdefault(run.card, {})[run.entry.run] = run
    merged = dict(known)
    for card, new in by_card.items():
        before = {run.entry.run: run for run in known[card].runs} if card in known else {}
        merged[card] = SiteCoefficients.of(card, list({**before, **new}.values()), written)
    return merged


def read(path: Path) -> dict[str, SiteCoefficients]:
    """Return the coefficients by card; empty without a file. Raises ConfigError if it cannot be read."""
    if not path.exists():
        return {}
    try:
        written = from_json(_CalibrationFile, as_object(json.loads(read_text(path))))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(codes.PLAN_CALIBRATION_FILE(str(path), str(error))) from error
    return {each.card: each for each in written.cards}


def dumps(coefficients: Mapping[str, SiteCoefficients]) -> str:
    """Return the file's text."""
    file = _CalibrationFile("written by paceline plan --calibrate", tuple(coefficients.values()))
    return json.dumps(asdict(file), indent=1, ensure_ascii=False) + "\n"


def table(coefficients: Iterable[SiteCoefficients]) -> str:
    """Return the runs and the factors as text."""
    rows: list[Sequence[str]] = [
        ("card", "model", "strategy", "ranks", "GiB planned", "measured", "tokens/s planned", "measured")
    ]
    lines = []
    for each in coefficients:
        for run in each.runs:
            e = run.entry
            numbers = (
                *(_number(value, GIB, ".2f") for value in (e.predicted_bytes, e.measured_bytes)),
                *(_number(value, 1, ",.0f") for value in (e.predicted_speed, e.measured_speed)),
            )
            rows.append((each.card[:22], Path(e.model).name[:14], e.strategy, str(e.ranks), *numbers))
        lines.append(
            f"plans on {each.card}: memory × {each.memory_factor:.2f}, time × {each.time_factor:.2f}"
            f" ({len(each.runs)} run(s))"
        )
    return f"{aligned(rows, numbers_from=3)}\n" + "\n".join(lines) + "\n"


def _number(value: float | None, unit: float, digits: str) -> str:
    return "?" if value is None else f"{value / unit:{digits}}"
