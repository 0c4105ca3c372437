"""What a rank's time goes to, and which ranks the others wait for."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import Json, JsonObject
from paceline.runlog.events import TimeBands
from paceline.training import codes

INTERVAL_SECONDS = 10.0  # between two events of a rank
LEAST_SHARE, LEAST_SECONDS = 0.1, 1.0  # of the run, by which a rank is above the others: less is no straggler
_SHOWN = 4


@dataclass
class Bands:
    """Seconds by kind: waiting for rows (or rollouts), own computation, waiting for other ranks, saving,
    evaluating; and the steps in them.
    """

    data: float = 0.0
    compute: float = 0.0
    wait: float = 0.0
    save: float = 0.0
    evaluation: float = 0.0
    seconds: float = 0.0
    steps: int = 0

    @property
    def own(self) -> float:
        """Seconds for which the other ranks wait for this one: nobody makes a step alone."""
        return self.data + self.compute

    def add(self, other: Bands) -> None:
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))

    def to_json(self) -> dict[str, float]:
        return {f.name: round(getattr(self, f.name), 3) for f in fields(self)}

    def event(self, step: int) -> TimeBands:
        """Return the event of these seconds before ``step``."""
        idle = self.save, self.evaluation
        return TimeBands(step, self.seconds, self.data, self.compute, self.wait, *idle, self.steps)


@dataclass
class BandClock:
    """Adds up a rank's bands. ``waited``: the seconds that it has waited for others so far."""

    waited: Callable[[], float] = lambda: 0.0
    total: Bands = field(default_factory=Bands)
    _now: Bands = field(default_factory=Bands)
    _since: float = field(default_factory=time.perf_counter)
    _waited: float = 0.0
    _data: float = 0.0
    _wait: float = 0.0
    _compute: float = 0.0
    _steps: int = 0

    def step(self, data: float, seconds: float) -> None:
        """Add a step that took ``seconds`` after ``data`` of waiting for its rows."""
        waited = self.waited()
        # At most the step's own time: a wait may have begun in the step before, whose collective ends in
        # this one.
        waits, self._waited = min(seconds, waited - self._waited), waited
        # plain sums: this is on the path of every step
        self._data += data
        self._wait += waits
        self._compute += seconds - waits
        self._steps += 1

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Inside the context the rank saves."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._now.add(Bands(save=time.perf_counter() - begun))
            # Waits inside a save or an evaluation belong to that band, not to the next step.
            self._waited = self.waited()

    def evaluated(self, seconds: float) -> None:
        """Add an evaluation."""
        self._now.add(Bands(evaluation=seconds))
        self._waited = self.waited()

    def due(self, step: int, *, last: bool = False) -> TimeBands | None:
        """Return the event of the time since the last one, at intervals, and at the end."""
        now = time.perf_counter()
        if now - self._since < INTERVAL_SECONDS and not last:
            return None
        bands, self._now = self._now, Bands()
        bands.add(Bands(self._data, self._compute, self._wait, seconds=now - self._since, steps=self._steps))
        self._since, self._data, self._wait, self._compute, self._steps = now, 0.0, 0.0, 0.0, 0
        self.total.add(bands)
        return bands.event(step) if bands.steps else None


@dataclass(frozen=True)
class Straggler:
    """A rank, its seconds above the median of the others, and their share of the run in percent."""

    rank: int
    seconds: float
    percent: float

    def finding(self) -> Diagnostic:
        return codes.TRAINING_STRAGGLER(
            f"rank {self.rank}",
            f"{self.seconds:.1f} s more of its own than the median of the others",
            rank=self.rank,
            percent=f"{self.percent:.0f}",
            evidence={
                "rank": self.rank,
                "seconds": round(self.seconds, 3),
                "percent": round(self.percent, 1),
            },
        )


def stragglers(ranks: Sequence[Bands]) -> list[Straggler]:
    """Return the ranks for which the others wait, the most expensive first; ``ranks``: the bands of each."""
    late = []
    for rank, bands in enumerate(ranks):
        # The median of the others: one straggler does not raise the value that it is compared with.
        others = [other.own for number, other in enumerate(ranks) if number != rank]
        above = bands.own - statistics.median(others) if others else 0.0
        if above > max(LEAST_SECONDS, LEAST_SHARE * bands.seconds):
            late.append(Straggler(rank, above, 100 * above / bands.seconds))
    return sorted(late, key=lambda straggler: -straggler.seconds)[:_SHOWN]


def bands_of_ranks(ranks: Sequence[Bands]) -> JsonObject:
    """Return the mean of the ranks, and the stragglers, for ``result.json``; empty where nothing is known."""
    if not ranks or not ranks[0].steps:
        return {}
    mean = Bands()
    for bands in ranks:
        mean.add(bands)
    late: list[Json] = [
        {"rank": s.rank, "seconds": round(s.seconds, 3), "percent": round(s.percent, 1)}
        for s in stragglers(ranks)
    ]
    seconds = {name: round(value / len(ranks), 3) for name, value in mean.to_json().items()}
    return {**seconds, "ranks": len(ranks), "stragglers": late}
