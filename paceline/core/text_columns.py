"""Rows of text under each other, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], numbers_from: int | None = None) -> str:
    """Return rows of cells as lines whose columns are as wide as their widest cell.

    The first row is the header. Columns from ``numbers_from`` on are flush right. No line ends in blanks.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    first = len(widths) if numbers_from is None else numbers_from
    lines = [
        [
            cell.ljust(width) if at < first else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    ]
    return "\n".join("  ".join(line).rstrip() for line in lines)
