"""``python -m paceline.watch.lengths_plot TOTALS PNG``: a picture of a data set from its totals (JSON): how
long its documents are, and what becomes of rows and tokens.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.launch.exit_handling import ended
from paceline.launch.redacted_output import redacted
from paceline.runlog.redact import printable
from paceline.watch import codes
from paceline.watch.axes import BLUE, GREEN, INK, QUIET, RED, plain, title
from paceline.watch.picture import exit_code_of, write_png

_NAMED = 4


def draw_lengths(totals: dict[str, Any], max_length: int, to: Path) -> Path:
    """Write a PNG and return its path. ``totals``: what ``paceline data show --json`` prints.

    Raises ConfigError if it cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    lengths, shares = figure.subplots(1, 2, width_ratios=[3, 2])
    _lengths(lengths, totals, max_length)
    _shares(shares, totals)
    return write_png(figure, to, codes.PLOT_WRITE, "give --to another file")


def _lengths(ax: Any, totals: dict[str, Any], max_length: int) -> None:
    edges, counts = totals["histogram"]["edges"], totals["histogram"]["counts"]
    ax.bar(edges[:-1], counts, width=edges[1] - edges[0], align="edge", color=BLUE)
    ax.set_xlim(0, max(edges[-1], max_length) * 1.02)
    ax.axvline(max_length, color=RED, linewidth=1)
    place = {"ha": "right", "va": "top", "transform": ax.get_xaxis_transform(), "rotation": 90}
    ax.text(max_length, 0.98, "data.max_length", color=RED, fontsize=9, **place)
    title(ax, "Length of documents")
    ax.set_xlabel("tokens", fontsize=9, color=QUIET)
    ax.set_ylabel("documents", fontsize=9, color=QUIET)
    ax.yaxis.get_major_locator().set_params(integer=True)
    plain(ax, "x")


def _shares(ax: Any, totals: dict[str, Any]) -> None:
    rows, documents, tokens = (max(totals[name], 1) for name in ("rows", "documents", "tokens"))
    not_read = list(totals["not_read"].items())[:_NAMED]
    bars = [
        ("tokens with loss", totals["tokens_with_loss"] / tokens, GREEN),
        ("rows used", totals["used"] / rows, GREEN),
        ("rows left out", sum(totals["skipped"].values()) / rows, RED),
        ("rows cut off", totals["truncated"] / rows, RED),
        ("duplicates", totals["duplicates"] / documents, RED),
        *((f"not read: {_label(name)}", count / rows, QUIET) for name, count in not_read),
    ]
    names = [name for name, _, _ in bars]
    ax.barh(names, [share for _, share, _ in bars], color=[colour for _, _, colour in bars])
    for place, (_, share, _) in enumerate(bars):
        ax.text(min(share, 1.0) + 0.01, place, f"{share:.1%}", va="center", fontsize=9, color=INK)
    ax.set_xlim(0, 1.15)
    ax.invert_yaxis()
    ax.set_xticks([])
    title(ax, "Share")
    plain(ax, "x")


def _label(name: str) -> str:
    return printable(name)[:28].replace("$", r"\$")


@redacted
@ended
def main(argv: Sequence[str] | None = None) -> int:
    """Draw; return the exit code."""
    totals, max_length, to = sys.argv[1:] if argv is None else argv
    return exit_code_of(
        lambda: draw_lengths(json.loads(Path(totals).read_text("utf-8")), int(max_length), Path(to))
    )


if __name__ == "__main__":
    sys.exit(main())
