"""Curves: finite points, and their running mean."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Curve:
    """Finite points in ascending order of x."""

    x: list[int]
    y: list[float]

    @staticmethod
    def of(points: Mapping[int, float]) -> Curve:
        """Return the finite points of ``points`` (x → y), sorted by x."""
        kept = sorted((x, y) for x, y in points.items() if math.isfinite(y))
        return Curve([x for x, _ in kept], [y for _, y in kept])

    def __bool__(self) -> bool:
        return bool(self.x)


def running_mean(values: list[float]) -> list[float]:
    """Return the mean over a centred window of about 1/20 of the curve.

    The window shrinks towards both ends, so that the mean does not lag there.
    """
    half = max(1, len(values) // 40)
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    means = []
    for i in range(len(values)):
        reach = min(half, i, len(values) - 1 - i)
        means.append((sums[i + reach + 1] - sums[i - reach]) / (2 * reach + 1))
    return means
