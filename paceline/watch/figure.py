"""What all pictures share: the figure and its file, colours, axes, labels, and curves of a run."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from paceline.core.diagnostics import Code
from paceline.core.errors import ConfigError, ExitCode, PacelineError
from paceline.runlog.history import History
from paceline.runlog.redact import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, QUIET, GRID = "#22272e", "#6b7683", "#e4e8ec"
BLUE, ORANGE, GREEN, PURPLE, RED = "#2f6db3", "#e07b21", "#2a9d5c", "#7a56b3", "#c8372d"
DASHED = (0, (4, 3))


def new_figure(width: float, height: float, **options: Any) -> Figure:
    """Return a figure of so many inches; matplotlib is imported here."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), **options)
    FigureCanvasAgg(figure)
    return figure


def write_png(figure: Figure, to: Path, code: Code, hint: str) -> Path:
    """Write a figure as PNG, replacing the file atomically; return its path.

    Raises ConfigError with ``code`` if it cannot be written.
    """
    staged = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(staged, format="png", dpi=130, facecolor="white")
        os.replace(staged, to)
    except OSError as exc:
        with contextlib.suppress(OSError):
            staged.unlink()
        raise ConfigError(code("the picture cannot be written", str(to), str(exc), hint)) from exc
    return to


def exit_code_of(draw: Callable[[], Path]) -> int:
    """Draw, say on standard error where the picture is or why there is none, and return the exit code."""
    try:
        print(f"picture     {draw()}", file=sys.stderr)
    except PacelineError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    return int(ExitCode.OK)


def plain_text(text: str) -> str:
    """Return foreign text as matplotlib shows it unchanged: escaped, and no formula between dollar signs."""
    return printable(text).replace("$", r"\$")


@dataclass(frozen=True)
class Curve:
    """Finite points in ascending order of x."""

    x: list[int]
    y: list[float]

    @staticmethod
    def of(points: Mapping[int, float]) -> Curve:
        """Return the finite points of ``points`` (x → y), sorted by x."""
        finite = sorted((x, y) for x, y in points.items() if math.isfinite(y))
        return Curve([x for x, _ in finite], [y for _, y in finite])

    def __bool__(self) -> bool:
        return bool(self.x)


def of_steps(history: History, name: str) -> Curve:
    """Return an extra of the steps that report it."""
    return Curve.of({step: e.extras[name] for step, e in history.steps.items() if name in e.extras})


def of_evaluations(history: History, name: str) -> Curve:
    """Return a metric of the evaluations that report it."""
    return Curve.of({step: e.metrics[name] for step, e in history.evals.items() if name in e.metrics})


def running_mean(values: list[float]) -> list[float]:
    """Return the mean over a centred window of about 1/20 of the curve.

    The window shrinks towards both ends, so that the mean does not lag there.
    """
    half = max(1, len(values) // 40)
    sums = [0.0, *accumulate(values)]
    reaches = [min(half, i, len(values) - 1 - i) for i in range(len(values))]
    return [(sums[i + reach + 1] - sums[i - reach]) / (2 * reach + 1) for i, reach in enumerate(reaches)]


def raw_and_mean(ax: Any, curve: Curve, colour: str, label: str) -> None:
    """Plot every step faintly and the running mean over it; a few steps as they are."""
    if len(curve.y) >= 20:
        ax.plot(curve.x, curve.y, color=colour, alpha=0.25, linewidth=0.9)
        ax.plot(curve.x, running_mean(curve.y), color=colour, linewidth=1.9, label=label)
    elif curve:
        ax.plot(curve.x, curve.y, color=colour, linewidth=1.6, label=label)


def dots(ax: Any, curve: Curve, colour: str, label: str, **style: Any) -> None:
    """Plot a few points, joined by a line."""
    ax.plot(
        curve.x,
        curve.y,
        **{"marker": "o", "color": colour, "linewidth": 1.8, "markersize": 4, **style},
        label=label,
    )


def frame(ax: Any, history: History, last: int | None) -> None:
    """Draw the grid, ticks and legend; with ``last`` (the last step) also a step axis with restarts."""
    plain(ax)
    if last is not None:
        ax.set_xlim(0, last * 1.02)
        step_axis(ax)
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


def step_axis(ax: Any) -> None:
    """Label the x axis as steps, which are integers."""
    ax.set_xlabel("step", fontsize=9, color=QUIET)
    ax.xaxis.get_major_locator().set_params(integer=True)


def title(ax: Any, title: str) -> None:
    """Set a panel's title."""
    ax.set_title(title, loc="left", fontsize=11, color=INK, fontweight="bold")


def label_if_empty(ax: Any, has_content: bool, words: str) -> None:
    """Write ``words`` into a panel without content."""
    if not has_content:
        ax.set_yticks([])
        ax.text(0.5, 0.5, words, transform=ax.transAxes, ha="center", va="center", fontsize=11, color=QUIET)


def share_limits(shares: Sequence[float]) -> tuple[float, float]:
    """Return the limits of an axis on which finite ``shares`` (0 to 1) fill most of the height.

    They are at least 0.1 apart, and at most a margin outside of 0 and 1; without shares, 0 to 1 with the
    margin.
    """
    finite = [share for share in shares if math.isfinite(share)] or [0.0, 1.0]
    least, most = min(finite), max(finite)
    room = max(0.1, most - least)
    middle = min(max((least + most) / 2, room / 2), 1 - room / 2) if room < 1 else 0.5
    return middle - 0.6 * room, middle + 0.6 * room


def percents(axis: Any) -> None:
    """Label one axis in percent."""
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
