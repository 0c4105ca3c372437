"""The planner's errors in two strata that are never pooled: all publishers but the sweep, each weighing the
same however many rows it has; and the sweep, one cluster with hundreds of rows and a fabric of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from planner_fit import SPEED, Sets, predicted_memory, predicted_speed, weighted
from planner_rows import Row, publisher
from planner_score import by, picks

from paceline.plan.cost.site_coefficients import factor_of

FITTED_CARDS = 128  # of the sweep: larger jobs are extrapolated
MANY_CARDS = 256
ENOUGH_ROWS = 10
MEMORY_PART, SPEED_PART = 0.87, 0.76  # of the other publishers' rows in a band; 80 % of a left out one's
MOST_GAIN = SPEED["low_precision"].high  # twice the peak, less scaling
Band = tuple[float, float]
BARE = (
    "| what | rows | publishers | median | 90th percentile | bias | under by > 10 % |",
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
)
HEADER = (f"{BARE[0]} in its band | width |", f"{BARE[1]} ---: | ---: |")


@dataclass(frozen=True)
class Guess:
    """A measured number, its prediction, and the band of measured / predicted that was printed with it."""

    row: Row
    measured: float
    predicted: float
    band: Band = (1.0, 1.0)

    @property
    def error(self) -> float:
        """Predicted / measured - 1."""
        return self.predicted / self.measured - 1

    @property
    def ratio(self) -> float:
        """Measured / predicted."""
        return self.measured / self.predicted

    @property
    def covered(self) -> bool:
        """Whether the band holds the measurement."""
        return self.band[0] <= self.ratio <= self.band[1]

    @property
    def full(self) -> bool:
        """Whether all weights were trained."""
        return self.row.tuning == "full"


@dataclass(frozen=True)
class Summary:
    """Figures over guesses, every publisher weighing the same."""

    rows: int
    publishers: int
    median: float
    p90: float
    bias: float
    under: float
    covered: float
    width: float

    @classmethod
    def of(cls, guesses: Sequence[Guess]) -> Summary:
        """Summarise ``guesses``; not a number where there are none."""
        weight = weights(guesses)
        sizes = [abs(g.error) for g in guesses]
        return cls(
            len(guesses),
            len({publisher(g.row) for g in guesses}),
            weighted(sizes, weight, 0.5),
            weighted(sizes, weight, 0.9),
            weighted([g.error for g in guesses], weight, 0.5),
            _share([g.error < -0.1 for g in guesses], weight),
            _share([g.covered for g in guesses], weight),
            weighted([g.band[1] / g.band[0] for g in guesses], weight, 0.5),
        )

    def line(self, name: str, band: bool = True) -> str:
        """One row of a table."""
        within = f" {self.covered:.0%} | {self.width:.2f} |" if band else ""
        return (
            f"| {name} | {self.rows} | {self.publishers} | {self.median:.1%} | {self.p90:.1%} |"
            f" {self.bias:+.1%} | {self.under:.0%} |{within}"
        )


def weights(guesses: Sequence[Guess]) -> list[float]:
    """Return a weight per guess: each publisher's sum to one."""
    count = {name: len(some) for name, some in by([g.row for g in guesses], publisher).items()}
    return [1 / count[publisher(g.row)] for g in guesses]


def _share(flags: Iterable[bool], weight: Sequence[float]) -> float:
    total = sum(weight)
    return sum(w for flag, w in zip(flags, weight, strict=True) if flag) / total if total else math.nan


def band_of(guesses: Sequence[Guess], part: float) -> Band:
    """Measured / predicted of the middle ``part`` of the guesses; publishers of few rows weigh less."""
    count = {name: len(some) for name, some in by([g.row for g in guesses], publisher).items()}
    weight = [1 / max(ENOUGH_ROWS, count[publisher(g.row)]) for g in guesses]
    ratios = [g.ratio for g in guesses]
    low, high = (1 - part) / 2, (1 + part) / 2
    return round(weighted(ratios, weight, low), 3), round(weighted(ratios, weight, high), 3)


def guesses_of_memory(rows: Iterable[Row], sets: Sets) -> list[Guess]:
    """Predict the rows whose memory was published."""
    return [Guess(row, row.memory, predicted_memory(row, sets)) for row in rows if row.memory]


def guesses_of_speed(rows: Iterable[Row], sets: Sets) -> list[Guess]:
    """Predict the rows whose speed was published."""
    return [Guess(row, row.speed, predicted_speed(row, sets)) for row in rows if row.speed]


def calibrated(guesses: Sequence[Guess], runs: int = 3) -> list[Guess]:
    """The rest of each publisher's rows after ``plan --calibrate`` on ``runs`` of them, spread over the
    list: it corrects the cards that they ran on.
    """
    found = []
    for name in {publisher(g.row) for g in guesses}:
        own = [g for g in guesses if publisher(g.row) == name]
        if len(own) < ENOUGH_ROWS:
            continue
        seen = own[:: max(1, len(own) // runs)][:runs]
        for card in {g.row.work.machine.name for g in own}:
            factor = factor_of(g.ratio for g in seen if g.row.work.machine.name == card)
            found += [
                Guess(g.row, g.measured, factor * g.predicted)
                for g in own
                if g not in seen and g.row.work.machine.name == card
            ]
    return found


def banded(guesses: Sequence[Guess], part: float, gain: Callable[[str], float] | None = None) -> list[Guess]:
    """Give each guess the band of the other publishers' errors: what would have been printed with it.

    ``gain``: of fp8, as fitted without a publisher; the band of such products reaches to ``MOST_GAIN``.
    """
    found = []
    for name in sorted({publisher(g.row) for g in guesses}):
        own = [g for g in guesses if publisher(g.row) == name]
        low, high = band_of([o for o in guesses if publisher(o.row) != name], part)
        for g in own:
            most = MOST_GAIN / gain(name) if gain and g.row.work.low_precision else 1.0
            found.append(Guess(g.row, g.measured, g.predicted, (low, round(high * most, 3))))
    return found


def main_table(memory: Sequence[Guess], speed: Sequence[Guess]) -> list[str]:
    """The figures of the publishers' stratum."""
    parts: list[tuple[str, Sequence[Guess]]] = [
        ("memory", memory),
        ("memory, full tuning", [g for g in memory if g.full]),
        ("memory, adapters", [g for g in memory if not g.full]),
        ("speed", speed),
    ]
    return [*HEADER, *(Summary.of(some).line(name) for name, some in parts)]


def counted_wrong(guesses: Sequence[Guess], lost: Mapping[str, int], kind: str) -> str:
    """A line of the errors in which ``lost`` rows, which cannot be predicted, are wrong by any measure."""
    count = Counter(publisher(g.row) for g in guesses)
    rows = count + Counter(lost)
    sizes = [abs(g.error) for g in guesses] + [math.inf] * len(lost)
    weight = [1 / rows[publisher(g.row)] for g in guesses] + [n / rows[name] for name, n in lost.items()]
    figures = [weighted(sizes, weight, part) for part in (0.5, 0.9)]
    texts = ["none" if math.isinf(figure) else f"{figure:.1%}" for figure in figures]
    return f"| {kind} | {rows.total()} | {len(rows)} | {texts[0]} | {texts[1]} | | |"


def grouped(guesses: Sequence[Guess], kind: str, key: Callable[[Row], str]) -> list[str]:
    """A line a group."""
    names = by([g.row for g in guesses], key)
    return [Summary.of([g for g in guesses if key(g.row) == n]).line(f"{n}: {kind}") for n in names]


def cards(row: Row) -> str:
    """How many cards, in classes."""
    limits = ((1, "1 card"), (8, "2 to 8 cards"), (64, "9 to 64 cards"), (255, "65 to 255 cards"))
    return next((name for limit, name in limits if row.work.world <= limit), f"{MANY_CARDS} cards and more")


def strategy(row: Row) -> str:
    """The layout's kind."""
    w = row.work
    if w.pp > 1:
        return "pipeline"
    if w.tp > 1:
        return "tensor parallel"
    return (
        {0: "replicated", 1: "ZeRO-1", 2: "ZeRO-2", 3: "FSDP, ZeRO-3"}[w.zero] if w.world > 1 else "one card"
    )


def sweep_table(rows: Sequence[Row], memory: Sets, speed: Sets) -> list[str]:
    """The figures of the sweep, up to ``FITTED_CARDS`` and above."""
    lines, regrets = [*BARE], []
    for label, low, high in (("to 128 cards", 0, FITTED_CARDS), ("256 and more", MANY_CARDS, 10**6)):
        some = [row for row in rows if low <= row.work.world <= high]
        lines.append(Summary.of(guesses_of_memory(some, memory)).line(f"memory, {label}", band=False))
        lines.append(Summary.of(guesses_of_speed(some, speed)).line(f"speed, {label}", band=False))
        found = picks(some, memory, speed)
        lost = [1.0 if pick.regret is None else pick.regret for pick in found]
        failed = sum(pick.regret is None for pick in found)
        mean = sum(lost) / max(1, len(lost))
        regrets.append(f"Regret of the picks, {label}: {mean:.1%} of {len(found)} cells, {failed} failed.")
    return [*lines, "", *regrets]
