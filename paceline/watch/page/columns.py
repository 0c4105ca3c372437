"""Tables of numbers on disk: one file of float64 a column, appended to in step order and read by numpy."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MAX_COLUMNS = 400
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
