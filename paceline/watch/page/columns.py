"""Tables of numbers on disk: one file of float64 a column, appended to in step order and read by numpy."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

MAX_COLUMNS = 400  # a run's own code may report any number of metrics
ROWS_HELD = 8192  # rows in memory before they are written
LOST = math.inf  # a value that was reported and is not finite; NaN: not reported

Series = NDArray[np.float64]


class Columns:
    """Rows of named numbers in ``folder``, none of which is in memory for long.

    Files are named by number: a metric's name never becomes a path. Names beyond MAX_COLUMNS are left out.
    """

    def __init__(self, folder: Path, names: list[str] | None = None, rows: int = 0) -> None:
        self.folder = folder
        self.names = list(names or ())
        self.left_out: set[str] = set()
        self._rows = rows
        self._held: list[Mapping[str, float]] = []
        folder.mkdir(parents=True, exist_ok=True)

    def __len__(self) -> int:
        return self._rows + len(self._held)

    def append(self, row: Mapping[str, float]) -> None:
        """Add a row; columns that it does not name get NaN."""
        self._held.append(row)
        if len(self._held) >= ROWS_HELD:
            self.flush()

    def cut(self, rows: int) -> None:
        """Keep the first ``rows`` rows."""
        if rows >= self._rows:
            del self._held[rows - self._rows :]
            return
        self._held.clear()
        self._rows = rows
        for i in range(len(self.names)):
            with self._file(i).open("r+b") as file:
                file.truncate(rows * 8)

    def read(self, name: str) -> Series:
        """Return a column, float64 [rows]; all NaN for a name that is not known."""
        self.flush()
        if name not in self.names or not self._rows:
            return np.full(self._rows, np.nan)
        return np.memmap(self._file(self.names.index(name)), np.float64, "r", shape=(self._rows,))

    def flush(self) -> None:
        """Write what is in memory."""
        if not self._held:
            return
        for name in dict.fromkeys(chain.from_iterable(self._held)):
            if name not in self.names:
                self._begin(name)
        for i, name in enumerate(self.names):
            with self._file(i).open("ab") as file:
                file.write(array("d", [row.get(name, math.nan) for row in self._held]).tobytes())
        self._rows += len(self._held)
        self._held.clear()

    def is_whole(self) -> bool:
        """Whether the files hold the rows that they should; cuts off what was appended later."""
        try:
            if any(self._file(i).stat().st_size < self._rows * 8 for i in range(len(self.names))):
                return False
            for i in range(len(self.names)):
                with self._file(i).open("r+b") as file:
                    file.truncate(self._rows * 8)
        except OSError:
            return False
        return True

    def _begin(self, name: str) -> None:
        if len(self.names) >= MAX_COLUMNS:
            self.left_out.add(name[:200])
            return
        self.names.append(name)
        with self._file(len(self.names) - 1).open("wb") as file:
            for begin in range(0, self._rows, ROWS_HELD):
                count = min(ROWS_HELD, self._rows - begin)
                file.write((array("d", [math.nan]) * count).tobytes())

    def _file(self, number: int) -> Path:
        return self.folder / f"{number}.f64"


MAX_BUCKETS = 4000  # more than a screen has columns of pixels
_MAX_LOST = 200  # marks of values that are not finite


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
