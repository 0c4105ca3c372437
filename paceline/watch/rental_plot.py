"""Plot what to rent: the cost of a training against its time, for every hardware that was searched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.units import human_seconds
from paceline.plan.cost.coefficients import spread
from paceline.plan.cost.rental.answer import hardware_of
from paceline.plan.cost.rental.choices import Choice, Choices
from paceline.watch import codes
from paceline.watch.figure import (
    BLUE,
    DASHED,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    QUIET,
    RED,
    new_figure,
    plain,
    write_png,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, "#e0b021", "#1d4470", "#c26a9b", "#6aa84f", "#7fb0e0", "#8c5a2b")
TICKS = (60, 600, 3600, 6 * 3600, 86400, 3 * 86400, 7 * 86400, 30 * 86400, 90 * 86400, 365 * 86400)


def draw(name: str, choices: Choices, target: Path) -> Path:
    """Write the plot to ``target`` (PNG), replacing it atomically.

    Raises ConfigError when it cannot be written.
    """
    figure = new_figure(11, 6.6, facecolor="white")
    axes = figure.add_axes((0.085, 0.10, 0.68, 0.74))
    figure.text(0.02, 0.945, f"{name}: cost against time", fontsize=15, color=INK, weight="bold")
    per = "of the whole training" if choices.whole else "of a billion tokens"
    slow, fast = spread("speed")
    subtitle = (
        f"list prices {per}; a point is a number of devices (printed at the ends); "
        f"bars: 80 % of published rows (time × {1 / fast:.2f} to {1 / slow:.2f})"
    )
    figure.text(0.02, 0.905, subtitle, fontsize=9.5, color=QUIET)
    priced = [choice for choice in choices.found if choice.usd is not None]
    _points(axes, priced)
    _front(axes, choices.front(), choices.best)
    _limits(axes, choices, priced)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _ticks(axes, priced)
    axes.set_xlabel("time", fontsize=9, color=QUIET)
    axes.set_ylabel("USD", fontsize=9, color=QUIET)
    plain(axes)
    if not priced:
        axes.text(0.5, 0.5, "the list has no price for this hardware", transform=axes.transAxes, ha="center")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=8.5, labelcolor=INK)
    return write_png(figure, target, codes.PLAN_PICTURE, "give --picture another file")


def _points(axes: Axes, priced: list[Choice]) -> None:
    kinds = list(dict.fromkeys(choice.name for choice in priced))
    for number, kind in enumerate(kinds):
        mine = sorted((c for c in priced if c.name == kind), key=lambda c: c.cluster.cards)
        axes.plot(
            [c.seconds for c in mine],
            [c.usd or 0.0 for c in mine],
            color=COLOURS[number % len(COLOURS)],
            marker="os^D"[number // len(COLOURS) % 4],
            markersize=5,
            linewidth=0.9,
            alpha=0.85,
            label=kind,
        )
        for choice in (mine[0], mine[-1]) if len(mine) > 1 else mine:
            axes.annotate(
                str(choice.cluster.cards),
                (choice.seconds, choice.usd),
                textcoords="offset points",
                xytext=(5, 4),
                fontsize=7.5,
                color=QUIET,
            )


def _front(axes: Axes, front: list[Choice], best: Choice | None) -> None:
    slow, fast = spread("speed")
    axes.plot(
        [c.seconds for c in front],
        [c.usd or 0.0 for c in front],
        color=INK,
        linewidth=1.6,
        linestyle=DASHED,
        label="nothing beats these",
        zorder=1,
    )
    if best is None or best.usd is None:
        return
    error = [[1 - 1 / fast], [1 / slow - 1]]
    axes.errorbar(
        best.seconds,
        best.usd,
        xerr=[[side[0] * best.seconds] for side in error],
        yerr=[[side[0] * best.usd] for side in error],
        fmt="*",
        markersize=15,
        color=RED,
        ecolor=RED,
        elinewidth=1.0,
        capsize=3,
        label=f"best: {hardware_of(best)}",
        zorder=5,
    )


def _limits(axes: Axes, choices: Choices, priced: list[Choice]) -> None:
    limits = choices.limits
    if limits.by is not None:
        axes.axvline(
            limits.by, color=RED, linewidth=1.1, linestyle=DASHED, label=f"by {human_seconds(limits.by)}"
        )
    if limits.budget is not None and priced:
        axes.axhline(limits.budget, color=RED, linewidth=1.1, label=f"budget {limits.budget:,.0f} USD")


def _ticks(axes: Axes, priced: list[Choice]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    )
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    if priced:
        low, high = min(c.seconds for c in priced) / 2, max(c.seconds for c in priced) * 2
        axes.set_xticks([tick for tick in TICKS if low <= tick <= high])
        axes.set_xlim(low, high)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: human_seconds(value)))
    axes.minorticks_off()
