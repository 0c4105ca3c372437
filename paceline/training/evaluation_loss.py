"""Exact evaluation of sets of any size: every row counts once, for any number of ranks and batch size."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from functools import partial

from paceline.core.errors import PacelineError
from paceline.protocols.algorithm import Objective
from paceline.protocols.batch import Batch
from paceline.protocols.data import RowSource
from paceline.strategies.model_handle import Handles
from paceline.strategies.strategy import Runner
from paceline.training import codes
from paceline.training.loop.prefetch import Loading
from paceline.training.loop.window_source import BatchLayout, read_batch


def evaluate(
    runner: Runner,
    handles: Handles,
    algorithm: Objective,
    source: RowSource,
    layout: BatchLayout,
    loading: Loading | None = None,
) -> dict[str, float]:
    """Return ``eval_loss``, ``eval_<metric>`` and ``eval_rows`` over the whole set. Collective.

    The means of ``window_means`` are over the whole set here, computed in a first pass over it. All ranks run
    the same number of micro-batches; beyond the end of the set they get fillers of weight 0. Sums and weights
    are reduced over the ranks and divided once. Raises PacelineError if the counted rows are not the rows of
    the set.
    """
    num_rows = source.num_rows(0)
    rounds = math.ceil(num_rows / (layout.micro_batch * layout.dp_size))
    loading = loading or Loading()

    def read(j: int, others: str = "") -> Batch:
        made = read_batch(source, 0, layout.positions(0, j, num_rows), range(num_rows), others)
        return made.pinned() if loading.pin else made

    # First pass, if the losses need means over the whole set
    means: Mapping[str, float] = {}
    if algorithm.window_means is not None:
        first = partial(read, others=algorithm.window_means.rows)
        with contextlib.closing(loading.in_order(first, range(rounds))) as batches:
            means = runner.window_means(handles, batches, algorithm)
    # Second pass: sums and weights over all ranks, and a check that each row was counted once
    with contextlib.closing(loading.in_order(read, range(rounds))) as batches:
        sums = runner.eval_window(handles, (batch.with_numbers(means) for batch in batches), algorithm)
    if sums.rows != num_rows:
        raise PacelineError(
            codes.TRAINING_EVAL_ROWS("data.eval", f"{sums.rows} rows evaluated of {num_rows}")
        )
    # Divide each sum by its weight: ``metric/term`` is a metric, a bare term is a part of the loss
    metrics = {"eval_rows": float(num_rows)}
    total, weight = 0.0, 0
    averages: dict[str, float] = {}
    for name, value in sums.sums.items():
        metric, _, term = name.rpartition("/")
        over = sums.weights.get(term or name, 0)
        if metric:
            averages[metric] = value / over if over else math.nan
        else:
            total, weight = total + (value / over if over else 0.0), weight + over
    metrics |= {f"eval_{name}": value for name, value in algorithm.summary(averages).items()}
    metrics["eval_loss"] = total if weight else math.nan
    return metrics
