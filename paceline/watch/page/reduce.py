"""Curves for the screen: minimum, maximum and mean of each of a few hundred equal parts of the x axis."""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from paceline.watch.page.columns import Series

MAX_BUCKETS = 4000
_MAX_LOST = 200


class Reduced(TypedDict):
    """One curve: ``x`` [buckets], and there ``mean``, ``low``, ``high``; ``lost``: x of values not finite.

    ``low`` and ``high`` are empty where every point is sent as it is. ``count``: points in the range.
    """

    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    lost: list[float]
    count: int


def reduced(
    x: Series, y: Series, buckets: int, begin: float | None = None, end: float | None = None
) -> Reduced:
    """Reduce ``y`` over ascending ``x`` (both [rows]) from ``begin`` to ``end``; NaN are no points.

    No extreme value is lost: each bucket has its minimum and its maximum.
    """
    buckets = max(2, min(buckets, MAX_BUCKETS))
    first = 0 if begin is None else int(np.searchsorted(x, begin, "left"))
    last = len(x) if end is None else int(np.searchsorted(x, end, "right"))
    x, y = np.asarray(x[first:last]), np.asarray(y[first:last])
    lost = x[np.isinf(y)]
    there = np.isfinite(y)
    x, y = x[there], y[there]
    out = Reduced(
        x=[], mean=[], low=[], high=[], lost=lost[:: max(1, len(lost) // _MAX_LOST)].tolist(), count=len(x)
    )
    if len(x) <= 2 * buckets:
        out["x"], out["mean"] = x.tolist(), y.tolist()
        return out
    width = (x[-1] - x[0]) / buckets or 1.0
    part = np.minimum(((x - x[0]) / width).astype(np.int64), buckets - 1)
    starts = np.flatnonzero(np.diff(part, prepend=-1))
    counts = np.diff(np.append(starts, len(x)))
    out["x"] = (np.add.reduceat(x, starts) / counts).tolist()
    out["mean"] = (np.add.reduceat(y, starts) / counts).tolist()
    out["low"] = np.minimum.reduceat(y, starts).tolist()
    out["high"] = np.maximum.reduceat(y, starts).tolist()
    return out
