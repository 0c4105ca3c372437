"""How far the predictions are off: figures over rows, and what the planner's choice in a cell would have
cost.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner_fit import Sets, predicted_speed
from planner_rows import Row

from paceline.plan.cost.coefficients import MemoryCoefficients
from paceline.plan.cost.memory.peak import worst_peak
from paceline.plan.workload.step_spec import why_not_run

SHIPPED = Path(__file__).resolve().parents[2] / "paceline" / "plan" / "data" / "coefficients.json"
FITS = 0.95  # of what torch reports as the card's memory: a prediction below that is said to run
MARGIN = 0.90  # … and below that it is chosen
ENOUGH = 20  # rows that make a cell one can choose in


def shipped() -> tuple[Sets, Sets, dict[str, tuple[float, float]]]:
    """Memory's and speed's sets, and the bands, as shipped."""
    data = json.loads(SHIPPED.read_text(encoding="utf-8"))
    return data["memory"], data["speed"], {kind: tuple(band) for kind, band in data["spread"].items()}


@dataclass(frozen=True)
class Pick:
    """The layout chosen in a cell: ``regret`` is the speed lost against the cell's best, None where the
    pick did not run.
    """

    cell: str
    layout: str
    predicted: float
    measured: float | None
    best: float

    @property
    def regret(self) -> float | None:
        return None if self.measured is None else 1 - self.measured / self.best


def fits(row: Row, sets: Sets, share: float = FITS) -> bool:
    """Whether the planner would say that this row runs (``share``: of the card that it may take)."""
    if why_not_run(row.work):
        return False
    c = MemoryCoefficients(**{**sets["default"], **sets.get(row.system, {})})
    return worst_peak(row.work, c)[1].total <= share * row.work.machine.memory


def fits_right(rows: Sequence[Row], sets: Sets) -> float:
    """The share of rows of which it is said rightly whether they run."""
    return sum(fits(row, sets) == row.ran for row in rows) / max(1, len(rows))


def by(rows: Iterable[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    found = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return dict(sorted(found.items()))


def picks(rows: Sequence[Row], memory: Sets, speed: Sets) -> list[Pick]:
    """The choice in every cell (a model on a number of cards with at least ``ENOUGH`` rows) that has
    failures and successes.
    """
    found = []
    for cell, listed in by(rows, lambda row: row.cell).items():
        ran = [row for row in listed if row.speed]
        if len(listed) < ENOUGH or not ran:
            continue
        allowed = [row for row in listed if fits(row, memory, MARGIN)]
        if not allowed:
            continue
        chosen = max(allowed, key=lambda row: predicted_speed(row, speed))
        twins = [row.speed for row in listed if row.layout == chosen.layout and row.speed]
        found.append(
            Pick(
                cell,
                chosen.layout,
                predicted_speed(chosen, speed),
                max(twins) if twins else None,
                max(row.speed or 0 for row in ran),
            )
        )
    return found
