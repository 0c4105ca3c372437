"""Format bytes, counts and durations for people."""

from __future__ import annotations


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
    """``3725`` → ``1h02m``."""
    total = int(round(seconds))
    if total < 60:
        return f"{total}s"
    if total < 3600:
        return f"{total // 60}m{total % 60:02d}s"
    return f"{total // 3600}h{total % 3600 // 60:02d}m"
