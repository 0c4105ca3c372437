"""The data order as a pure function (contract 4): an epoch's documents, their rows, and each rank's rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.data.packing import PACK_ALGORITHM, Bins, best_fit_decreasing
from paceline.data.random_keys import hash_values, permutation, stream_key

ORDER_ALGORITHM = f"{PACK_ALGORITHM}+splitmix64-argsort/1"

I64 = NDArray[np.int64]


def epoch_documents(dataset_of: NDArray[np.int32], weights: Sequence[float], seed: int, epoch: int) -> I64:
    """Return int64 [n]: the documents of one epoch, ascending, repeated according to their data set's weight.

    A data set of N documents and weight w gives round(w x N) samples. Every document comes floor(w) times;
    the rest are the documents with the smallest hash of (seed, epoch, document). So no document is repeated
    before all have appeared. Weight 1 is every document once.
    """
    if all(weight == 1 for weight in weights):
        return np.arange(len(dataset_of), dtype=np.int64)
    times = np.zeros(len(dataset_of), np.int64)
    for index, weight in enumerate(weights):
        members = np.flatnonzero(dataset_of == index)
        times[members] = int(weight)
        # round, not floor: 0.29 · 100 is 28.999999999999996.
        extra = round(weight * len(members)) - int(weight) * len(members)
        if extra > 0:
            drawn = hash_values(stream_key(seed, "mixture", epoch, index), members.astype(np.uint64))
            # The smallest hashes; equal ones go by index.
            times[members[np.argsort(drawn, kind="stable")[:extra]]] += 1
    return np.repeat(np.arange(len(dataset_of), dtype=np.int64), times)


def epoch_bins(
    documents: I64,
    lengths: NDArray[np.int32],
    *,
    seq_len: int,
    packing: bool,
    seed: int,
    epoch: int,
    shuffle: bool,
) -> Bins:
    """Return the rows of one epoch in order: bins of documents (indices into the table), packed or one each.

    With ``shuffle`` permuted by (seed, epoch).
    """
    num = len(documents)
    bins = Bins(documents, np.arange(num + 1, dtype=np.int64))
    if packing:
        order = permutation(stream_key(seed, "pack", epoch), num) if shuffle else None
        packed = best_fit_decreasing(lengths[documents], seq_len, order)
        bins = Bins(documents[packed.items], packed.offsets)
    if not shuffle:
        return bins
    return _reordered(bins, permutation(stream_key(seed, "rows", epoch), len(bins)))


def _reordered(bins: Bins, order: I64) -> Bins:
    sizes = np.diff(bins.offsets)[order]
    offsets = np.zeros(len(order) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    # Without a loop over bins: each one's old start, less its new one, plus the place in the result.
    take = np.repeat(bins.offsets[:-1][order] - offsets[:-1], sizes) + np.arange(offsets[-1])
    return Bins(bins.items[take], offsets)


def steps_per_epoch(num_rows: int, global_batch: int, *, drop_last: bool) -> int:
    """Return optimizer steps per epoch; the last partial step is filled with weight-0 rows, or dropped."""
    return num_rows // global_batch if drop_last else -(-num_rows // global_batch)


def positions_for(
    step: int, micro_step: int, dp_rank: int, dp_size: int, micro_batch: int, accumulation: int
) -> list[int]:
    """Return the positions in the epoch's order of one micro-batch.

    They are [sG + (j·dp + d)·m, +m) with G = m · accumulation · dp; ``step`` s counts from the start of the
    epoch. Positions at or beyond ``num_rows`` are fillers (``RowSource.batch`` makes them weight-0 rows).
    """
    start = step * (micro_batch * accumulation * dp_size) + (micro_step * dp_size + dp_rank) * micro_batch
    return list(range(start, start + micro_batch))


def step_positions(step: int, global_batch: int, num_rows: int) -> range:
    """Return the positions of a full step over all ranks, without fillers: [sG, (s+1)G) < ``num_rows``."""
    return range(step * global_batch, min((step + 1) * global_batch, num_rows))
