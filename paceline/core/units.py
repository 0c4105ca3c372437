"""Text for people: bytes, counts, durations and columns; and sizes that people write."""

from __future__ import annotations

import re
from collections.abc import Sequence

# 5GB is decimal, 5GiB binary; a bare number is bytes
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", re.IGNORECASE)


def bytes_of(text: str) -> int:
    """``5GB`` → ``5000000000``, ``2GiB`` → ``2147483648``, ``4096`` → ``4096``. Raises ValueError."""
    match = _SIZE.fullmatch(text)
    if match is None or (match[3] and not match[2]):
        raise ValueError(f"{text!r} is no size")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** " KMGT".index(match[2].upper() or " "))


_TIME = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(m|min|h|d|w)\s*", re.IGNORECASE)
_UNITS = {"m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def seconds_of(text: str) -> float:
    """``3d`` → ``259200.0``, ``36h`` → ``129600.0``. Raises ValueError."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no time")
    return float(match[1]) * _UNITS[match[2].lower()]


def human_bytes(num_bytes: float) -> str:
    """``3221225472`` → ``3.00 GiB``."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    return f"{value:.2f} TiB"


def human_count(count: float) -> str:
    """``56400000`` → ``56.4M``."""
    value = float(count)
    for unit in ("", "K", "M", "B"):
        if abs(value) < 1000:
            return f"{value:.0f}{unit}" if unit == "" else f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g}T"


def human_seconds(seconds: float) -> str:
    """``3725`` → ``1h02m``, ``300000`` → ``3d11h``."""
    total = int(round(seconds))
    if total < 60:
        return f"{total}s"
    if total < 3600:
        return f"{total // 60}m{total % 60:02d}s"
    if total < 72 * 3600:
        return f"{total // 3600}h{total % 3600 // 60:02d}m"
    return f"{total // 86400}d{total % 86400 // 3600:02d}h"


def aligned(rows: Sequence[Sequence[str]], numbers_from: int | None = None) -> str:
    """Return rows of cells as lines whose columns are as wide as their widest cell.

    The first row is the header. Columns from ``numbers_from`` on are flush right. No line ends in blanks.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    first = len(widths) if numbers_from is None else numbers_from
    lines = [
        [
            cell.ljust(width) if number < first else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    ]
    return "\n".join("  ".join(line).rstrip() for line in lines)
