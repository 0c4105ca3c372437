"""What a rank's time goes to, which ranks the others wait for, and a step's throughput and MFU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

import torch

from paceline.algorithms.algorithm import Algorithm
from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import Json, JsonObject
from paceline.plan.hardware.device_catalogue import data_sheet_peak
from paceline.plan.hardware.device_kinds import is_accelerator
from paceline.plan.plan import Plan
from paceline.runlog.events import TimeBands
from paceline.runtime.device.device import device_name, matmul_rate
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


@dataclass(frozen=True)
class PeakFlops:
    """Peak FLOP/s of one rank's device, the divisor of utilization.

    ``data_sheet``: the number is the data sheet's, as in the planner; otherwise it was timed here on a matrix
    product.
    """

    flops: float
    data_sheet: bool

    @staticmethod
    def of(device: torch.device, compute: str) -> PeakFlops:
        """Return the peak of ``device`` in the dtype named ``compute``; timed if no data sheet is known."""
        accelerated = is_accelerator(device.type)
        if accelerated and (peak := data_sheet_peak(device_name(device), compute)) is not None:
            return PeakFlops(peak, True)
        # a CPU without instructions for ``compute`` falls back to float32, so the faster of both counts
        dtypes = {getattr(torch, compute)} | (set() if accelerated else {torch.float32})
        return PeakFlops(max(matmul_rate(device, dtype) for dtype in dtypes), False)


@dataclass(frozen=True)
class Throughput:
    """``matmul_parameters`` are the weights used in matrix products; ``peak`` None: utilization is not
    computed.
    """

    matmul_parameters: int
    world_size: int
    peak: PeakFlops | None

    @staticmethod
    def of(plan: Plan, algorithm: Algorithm, device: torch.device) -> Throughput:
        """Count the weights for MFU at 6 FLOP per token, of each trained model.

        With an adapter, frozen weights need no weight gradient, which leaves 4 of the 6. A reference
        that runs in every step adds the 2 of its forward, and so does each forward over a window before it.
        """
        peak = PeakFlops.of(device, plan.precision.compute)
        if plan.shape is None:
            return Throughput(0, plan.world_size, None)
        means = algorithm.window_means
        forwards = (plan.reference in ("live", "adapter")) + (0 if means is None else len(means.roles))
        sixths = (6 if plan.adapter is None else 4) * len(algorithm.trains) + 2 * forwards
        return Throughput(plan.shape.matmul_parameters * sixths // 6, plan.world_size, peak)

    def tokens_per_second(self, tokens: int, seconds: float) -> float:
        """Return real (non-padding) tokens per second, over all ranks."""
        return tokens / seconds if seconds > 0 else 0.0

    def utilisation(self, tokens: int, seconds: float) -> dict[str, float | None]:
        """Return the fields of ``events.Step``: 6 · matmul_parameters · tokens / (seconds · ranks · peak).

        With a data sheet's peak this is the PaLM definition of MFU (Chowdhery et al. 2022, appendix B)
        without its attention term; with a timed product it is the fraction of that product's rate, not MFU.
        """
        shares: dict[str, float | None] = {"mfu": None, "of_product": None}
        if self.peak is None or seconds <= 0:
            return shares
        share = 6.0 * self.matmul_parameters * tokens / (seconds * self.world_size * self.peak.flops)
        return shares | {"mfu" if self.peak.data_sheet else "of_product": share}
