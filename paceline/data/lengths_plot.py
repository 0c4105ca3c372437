"""A picture of a data set: how long its documents are, and what becomes of rows and tokens."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.errors import ConfigError
from paceline.watch import codes
from paceline.watch.axes import BLUE, GREEN, GRID, INK, QUIET, RED

if TYPE_CHECKING:
    from paceline.data.shown import Totals


def draw_lengths(totals: Totals, max_length: int, to: Path) -> Path:
    """Write a PNG and return its path. Raises ConfigError if it cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    lengths, shares = figure.subplots(1, 2, width_ratios=[3, 2])
    _lengths(lengths, totals, max_length)
    _shares(shares, totals)
    staged = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(staged, format="png", dpi=130, facecolor="white")
        os.replace(staged, to)
    except OSError as exc:
        with contextlib.suppress(OSError):
            staged.unlink()
        hint = "give --to another file"
        raise ConfigError(codes.PLOT_WRITE("the picture cannot be written", str(to), str(exc), hint)) from exc
    return to


def _lengths(ax: Any, totals: Totals, max_length: int) -> None:
    if len(totals.lengths):
        top = max(int(totals.lengths.max()), max_length)
        ax.hist(totals.lengths, bins=min(60, top), range=(0, top), color=BLUE)
    ax.axvline(max_length, color=RED, linewidth=1)
    ax.text(
        max_length,
        1.0,
        "data.max_length ",
        color=RED,
        fontsize=9,
        ha="right",
        va="top",
        transform=ax.get_xaxis_transform(),
        rotation=90,
    )
    ax.set_title("Length of documents", loc="left", fontsize=11, color=INK, fontweight="bold")
    ax.set_xlabel("tokens", fontsize=9, color=QUIET)
    ax.set_ylabel("documents", fontsize=9, color=QUIET)
    _plain(ax)


def _shares(ax: Any, totals: Totals) -> None:
    rows, documents, tokens = max(totals.rows, 1), max(len(totals.lengths), 1), max(totals.tokens, 1)
    bars = [
        ("tokens with loss", totals.labels / tokens, GREEN),
        ("rows used", totals.used / rows, GREEN),
        ("rows left out", sum(totals.skipped.values()) / rows, RED),
        ("rows cut off", totals.truncated / rows, RED),
        ("duplicates", totals.duplicates / documents, RED),
        *(
            (f"not read: {name}"[:34], count / rows, QUIET)
            for name, count in list(totals.not_read.items())[:4]
        ),
    ]
    names = [name for name, _, _ in bars]
    ax.barh(names, [share for _, share, _ in bars], color=[colour for _, _, colour in bars])
    for place, (_, share, _) in enumerate(bars):
        ax.text(min(share, 1.0) + 0.01, place, f"{share:.1%}", va="center", fontsize=9, color=INK)
    ax.set_xlim(0, 1.15)
    ax.invert_yaxis()
    ax.set_xticks([])
    ax.set_title("Share", loc="left", fontsize=11, color=INK, fontweight="bold")
    _plain(ax)


def _plain(ax: Any) -> None:
    ax.grid(True, axis="x", color=GRID, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(GRID)
    ax.tick_params(colors=QUIET, labelsize=9, length=0)
