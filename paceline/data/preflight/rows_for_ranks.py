"""Whether there is a row for each data-parallel rank. No NumPy: asked before the start, too."""

from __future__ import annotations

from paceline.core.diagnostics import Diagnostic
from paceline.data import codes


def check_feeds(num_rows: int, dp_size: int, *, what: str = "training") -> list[Diagnostic]:
    """Return a finding if there are fewer rows than data-parallel ranks: some would never get a row."""
    if num_rows >= dp_size:
        return []
    return [
        codes.DATA_TOO_FEW_ROWS(
            f"{num_rows} {what} row{'s' if num_rows != 1 else ''} cannot be divided among"
            f" {dp_size} processes: some would never get one",
            "data.train" if what == "training" else "data.eval",
            f"{num_rows} rows (documents packed together count as one), {dp_size} processes",
            f"use at most --nproc {max(num_rows, 1)}, data.packing: false, or more data",
        )
    ]
