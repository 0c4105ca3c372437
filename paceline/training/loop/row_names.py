"""The rows of the training data by name: ``file:row``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paceline.data.token_table import TokenTable


@dataclass(frozen=True)
class RowNames:
    """``paths``: the data sets of ``table`` in the config's words. Rows count from 1 in their data set."""

    table: TokenTable
    paths: Sequence[str]

    def of(self, documents: Iterable[int]) -> list[str]:
        """Return the row of each document, each once and in order; fillers have none."""
        table = self.table
        places = ((int(table.dataset[i]), int(table.source_row[i])) for i in documents if i >= 0)
        return [f"{self._path(data_set)}:{row + 1}" for data_set, row in dict.fromkeys(places)]

    def _path(self, data_set: int) -> str:
        return self.paths[data_set] if data_set < len(self.paths) else f"data set {data_set + 1}"
