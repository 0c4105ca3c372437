"""The time that failures cost: starts, saves, and steps that are done again."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from paceline.core.json_types import JsonObject
from paceline.core.units import human_seconds
from paceline.plan.hardware.device_catalogue import AcceleratorCluster
from paceline.plan.workload.local_tensors import SIZES
from paceline.plan.workload.step_spec import StepSpec

#: Hours of a card: Llama 3 405B had 419 unexpected interruptions in 54 days on 16,384 cards.
HOURS_BETWEEN_FAILURES, SOURCE = 50_000.0, "arXiv:2407.21783"
#: Assumed, since a plan knows no disk: bytes a second that a node reads and writes.
DISK = 2e9
#: Assumed seconds: to start processes and communicators, and to get a node for a lost one.
PROCESSES, REPLACEMENT = 60.0, 120.0
ASSUMED = (
    f"assumed, not measured: {DISK / 1e9:.0f} GB/s of disk a node, {PROCESSES:.0f} s to start processes,"
    f" {REPLACEMENT:.0f} s to replace a node"
)


@dataclass(frozen=True)
class Goodput:
    """What failures cost a whole job, in seconds. ``share``: the part of the time whose steps count.

    - ``start``: from the command to the first step, reading the model
    - ``between``: mean time between failures
    - ``taken``: mean time until a node is taken away, of spot cards; None: hardware failures alone
    - ``save``: to write a checkpoint; ``interval``: of training between two
    """

    start: float
    between: float
    taken: float | None
    save: float
    interval: float
    share: float

    def to_json(self) -> JsonObject:
        """Plain JSON types."""
        return {**asdict(self), "failures": SOURCE, "assumed": ASSUMED}

    def text(self, step: float) -> str:
        """Return it as one sentence, with what is assumed; ``step``: seconds of an optimizer step."""
        spot = f"a node taken every {human_seconds(self.taken)} (assumed: --spot), and " if self.taken else ""
        return (
            f"{human_seconds(self.start)} to start and read the model; a failure every"
            f" {human_seconds(self.between)}: {spot}{HOURS_BETWEEN_FAILURES:,.0f} h a card ({SOURCE});"
            f" save every {human_seconds(self.interval)} ({max(1, round(self.interval / step)):,} steps,"
            f" {human_seconds(self.save)} a save; Young/Daly): {self.share:.1%} of the time is useful;"
            f" {ASSUMED}"
        )


def goodput(
    work: StepSpec, cluster: AcceleratorCluster, checkpoint: float, taken: float | None = None
) -> Goodput:
    """Return the goodput at the best interval between saves of ``checkpoint`` bytes.

    The interval is Young's (1974), √(2δM) with a save δ and M between failures, at most M. The time for it is
    Daly's (2006), M·e^(R/M)·(e^((τ+δ)/M) − 1) with R for a restart, which also reads the checkpoint.
    """
    # Failures of parts are independent, so their rates add up; spot cards go by nodes.
    rate = cluster.cards / (HOURS_BETWEEN_FAILURES * 3600) + (cluster.nodes / taken if taken else 0.0)
    between, save = 1 / rate, checkpoint / (DISK * cluster.nodes)
    start = start_seconds(work)
    interval = min(math.sqrt(2 * save * between), between)
    # As a product of exponentials below 1: a job that never gets through has 0, and nothing overflows
    # A restart reads what a save wrote, at the same speed.
    restart, whole = start + REPLACEMENT + save, (interval + save) / between
    share = interval / between * math.exp(-restart / between - whole) / -math.expm1(-whole) if whole else 1.0
    return Goodput(start, between, taken, save, interval, share)


def start_seconds(work: StepSpec) -> float:
    """Return the seconds to start, where each node reads the files of every model once."""
    stored = work.shape.stored
    each = (SIZES[stored] if stored else 2.0) * work.shape.num_parameters
    models = 1 + work.trained_models + work.frozen_models * work.frozen_size
    return PROCESSES + each * models / DISK
