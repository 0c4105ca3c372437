"""Helpers for the panels of a run's plot: colours, titles, frames, ticks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from paceline.runlog.history import History
from paceline.watch.curves import Curve, running_mean

INK, QUIET, GRID = "#22272e", "#6b7683", "#e4e8ec"
BLUE, ORANGE, GREEN, PURPLE, RED = "#2f6db3", "#e07b21", "#2a9d5c", "#7a56b3", "#c8372d"


def raw_and_mean(ax: Any, curve: Curve, colour: str, label: str) -> None:
    """Plot every step faintly and the running mean over it."""
    if not curve:
        return
    few = len(curve.y) < 20
    ax.plot(
        curve.x,
        curve.y,
        color=colour,
        alpha=1.0 if few else 0.25,
        linewidth=1.6 if few else 0.9,
        label=label if few else None,
    )
    if not few:
        ax.plot(curve.x, running_mean(curve.y), color=colour, linewidth=1.9, label=label)


def frame(ax: Any, history: History, last: int | None) -> None:
    """Draw the grid, ticks and legend; with ``last`` (the last step) also a step axis with restarts."""
    plain(ax)
    if last is not None:
        ax.set_xlim(0, last * 1.02)
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.set_xlabel("step", fontsize=9, color=QUIET)
        for step in history.restarts:
            ax.axvline(step, color=RED, linewidth=0.9, linestyle=":", alpha=0.7)
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        ax.legend(handles, labels, fontsize=8.5, frameon=False, labelcolor=INK, loc="best")


def plain(ax: Any, grid: Literal["both", "x", "y"] = "both") -> None:
    """Draw grid lines behind the data, two spines, and no tick marks."""
    ax.grid(True, axis=grid, color=GRID, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(GRID)
    ax.tick_params(colors=QUIET, labelsize=9, length=0)


def title(ax: Any, title: str) -> None:
    """Set a panel's title."""
    ax.set_title(title, loc="left", fontsize=11, color=INK, fontweight="bold")


def say_last(ax: Any, curve: Curve, colour: str, pattern: str) -> None:
    """Write the last value at the end of its curve."""
    if curve.y:
        place = {"xytext": (-4, 7), "textcoords": "offset points", "ha": "right"}
        ax.annotate(
            pattern.format(curve.y[-1]),
            (curve.x[-1], curve.y[-1]),
            fontsize=9,
            color=colour,
            fontweight="bold",
            **place,
        )


def say_if_empty(ax: Any, has_content: bool, words: str) -> None:
    """Write ``words`` into a panel without content."""
    if not has_content:
        ax.set_yticks([])
        ax.text(0.5, 0.5, words, transform=ax.transAxes, ha="center", va="center", fontsize=11, color=QUIET)


def metric(metrics: Mapping[str, float], name: str) -> float:
    """Return a metric by name; NaN when it was not reported."""
    return metrics.get(name, math.nan)


def share_limits(shares: Sequence[float]) -> tuple[float, float]:
    """Return the limits of an axis on which finite ``shares`` (0 to 1) fill most of the height.

    At least 0.1 apart, within 0 and 1 and a margin; 0 to 1 with the margin when there are none.
    """
    finite = [share for share in shares if math.isfinite(share)] or [0.0, 1.0]
    least, most = min(finite), max(finite)
    room = max(0.1, most - least)
    middle = min(max((least + most) / 2, room / 2), 1 - room / 2) if room < 1 else 0.5
    return middle - 0.6 * room, middle + 0.6 * room


def percents(ax: Any, axis: str = "y") -> None:
    """Label one axis in percent."""
    from matplotlib.ticker import PercentFormatter

    (ax.yaxis if axis == "y" else ax.xaxis).set_major_formatter(PercentFormatter(1.0, decimals=0))


def thousands(ax: Any) -> None:
    """Label the y axis with thousands separators."""
    from matplotlib.ticker import FuncFormatter

    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
