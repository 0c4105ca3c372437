"""``python -m paceline.watch.summary_plots KIND PNG ARGUMENT…``: pictures of several runs, evaluations and
data.

runs PNG RUN RUN…        the curves of several runs
evaluations PNG FILE     what ``paceline evaluate --json`` found, by step where the models are a run's
                         checkpoints, else by name
lengths PNG FILE LENGTH  a data set, from ``paceline data show --json``: how long its documents are, and
                         what becomes of rows and tokens
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.core.rundir import RunDir
from paceline.launch.program import program
from paceline.runlog.history import load_history
from paceline.watch import codes
from paceline.watch.figure import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    QUIET,
    RED,
    exit_code_of,
    new_figure,
    of_evaluations,
    plain,
    plain_text,
    step_axis,
    title,
    write_png,
)

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, RED)
_LINES = ("-", "--", ":")  # once the colours are used up
_MAX_LEGEND = 12  # runs; a longer legend hides the curves
_COLUMNS = 3
_LABEL_ROOM = 0.12  # share of the height over the bars of the lengths
_NAME_LENGTH = 24  # the end of a path tells runs apart
# counts, not measures
_NOT_DRAWN = ("rows", "tokens", "step", "answers", "rows_skipped", "rows_truncated", "judged")
_SHARES = ("token_accuracy", "exact_match", "numeric", "f1", "math_verify", "answers_ended")
_SHARE_PREFIXES = ("pass@", "rouge")
_MAX_UNREAD_FIELDS = 4


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Draw; return the exit code."""
    kind, png, *arguments = sys.argv[1:] if argv is None else argv
    to = Path(png)
    if kind == "runs":
        return exit_code_of(lambda: draw_runs([Path(run) for run in arguments], to))
    data = json.loads(Path(arguments[0]).read_text("utf-8"))
    if kind == "evaluations":
        return exit_code_of(lambda: draw_evaluations(data, to))
    return exit_code_of(lambda: draw_lengths(data, int(arguments[1]), to))


def draw_runs(runs: Sequence[Path], to: Path) -> Path:
    """Write a PNG with loss, evaluation loss, learning rate and throughput of runs, and return its path.

    Raises ConfigError if it cannot be written.
    """
    figure = new_figure(12, 7.4, layout="constrained")
    panels: Any = figure.subplots(2, 2).ravel()
    histories = [load_history(RunDir.at(run)) for run in runs]
    for number, (run, history) in enumerate(zip(runs, histories, strict=True)):
        style = {
            "color": _COLOURS[number % len(_COLOURS)],
            "linestyle": _LINES[number // len(_COLOURS) % len(_LINES)],
            "label": plain_text(run.name[-32:]) if number < _MAX_LEGEND else None,
            "linewidth": 1.5,
        }
        evaluations, events = of_evaluations(history, "eval_loss"), history.steps.values()
        for panel, name in ((0, "loss"), (2, "lr"), (3, "tokens_per_second")):
            panels[panel].plot([*history.steps], [getattr(event, name) for event in events], **style)
        panels[1].plot(evaluations.x, evaluations.y, marker="o", markersize=3, **style)
    names = ("Loss", "Evaluation loss", "Learning rate", "Tokens per second")
    for ax, name in zip(panels, names, strict=True):
        title(ax, name)
        plain(ax)
        step_axis(ax)
    if any(history.steps for history in histories):
        panels[0].legend(fontsize=8.5, frameon=False, labelcolor=INK)
    return write_png(figure, to, codes.PLOT_WRITE, "give another file")


def draw_evaluations(evaluations: Sequence[Mapping[str, Any]], to: Path) -> Path:
    """Write a PNG and return its path. ``evaluations``: what ``paceline evaluate --json`` prints.

    Raises ConfigError if it cannot be written.
    """
    rows = [{**row, **row["scores"]} for row in evaluations]
    names = [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if name not in _NOT_DRAWN and any(isinstance(row.get(name), (int, float)) for row in rows)
    ]
    columns = min(_COLUMNS, len(names))
    lines = math.ceil(len(names) / columns)
    figure = new_figure(4.4 * columns, 3.4 * lines, layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    for ax, name in zip(axes, names, strict=False):
        _metric(ax, name, [row for row in rows if isinstance(row.get(name), (int, float))])
    for ax in axes[len(names) :]:
        ax.set_axis_off()
    return write_png(figure, to, codes.PLOT_WRITE, "give --plot another file")


def _metric(ax: Any, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw a metric of the rows that have it."""
    share = name in _SHARES or name.startswith(_SHARE_PREFIXES)
    values = [float(row[name]) * (100 if share else 1) for row in rows]
    steps = [row["step"] for row in rows]
    one_run = len({Path(row["path"]).parent for row in rows}) == 1
    if one_run and None not in steps and len(set(steps)) == len(steps):
        ax.plot(steps, values, color=BLUE, marker="o", markersize=4, linewidth=1.5)
        step_axis(ax)
        plain(ax)
    else:
        ax.barh(range(len(values)), values, color=BLUE)
        ax.set_yticks(range(len(values)), [plain_text(str(row["name"])[-_NAME_LENGTH:]) for row in rows])
        ax.invert_yaxis()
        plain(ax, "x")
        for row_number, value in enumerate(values):
            ax.text(value, row_number, f" {value:.4g}", va="center", fontsize=8, color=INK)
        ax.margins(x=0.15)
    title(ax, plain_text(name.replace("_", " ")) + (", %" if share else ""))


def draw_lengths(totals: dict[str, Any], max_length: int, to: Path) -> Path:
    """Write a PNG and return its path. ``totals``: what ``paceline data show --json`` prints.

    Raises ConfigError if it cannot be written.
    """
    figure = new_figure(11, 4.2, layout="constrained")
    lengths, shares = figure.subplots(1, 2, width_ratios=[3, 2])
    _lengths(lengths, totals["histogram"], max_length)
    _shares(shares, totals)
    return write_png(figure, to, codes.PLOT_WRITE, "give --to another file")


def _lengths(ax: Any, histogram: Mapping[str, Any], max_length: int) -> None:
    edges = histogram["edges"]
    ax.bar(edges[:-1], histogram["counts"], width=edges[1] - edges[0], align="edge", color=BLUE)
    ax.set_xlim(0, max(edges[-1], max_length) * 1.02)
    ax.axvline(max_length, color=RED, linewidth=1)
    # The label has room of its own over the highest bar, on the side of its line that is wider
    ax.set_ylim(0, max(1, *histogram["counts"]) / (1 - _LABEL_ROOM))
    on_the_right = max_length > ax.get_xlim()[1] / 2
    anchor = {"ha": "right" if on_the_right else "left", "va": "top", "transform": ax.get_xaxis_transform()}
    label = "data.max_length " if on_the_right else " data.max_length"
    ax.text(max_length, 0.99, label, color=RED, fontsize=9, **anchor)
    title(ax, "Length of documents")
    ax.set_xlabel("tokens", fontsize=9, color=QUIET)
    ax.set_ylabel("documents", fontsize=9, color=QUIET)
    ax.yaxis.get_major_locator().set_params(integer=True)
    plain(ax, "x")


def _shares(ax: Any, totals: dict[str, Any]) -> None:
    rows, documents, tokens = (max(totals[name], 1) for name in ("rows", "documents", "tokens"))
    not_read = list(totals["not_read"].items())[:_MAX_UNREAD_FIELDS]
    bars = [
        ("tokens with loss", totals["tokens_with_loss"] / tokens, GREEN),
        ("rows used", totals["used"] / rows, GREEN),
        ("rows left out", sum(totals["skipped"].values()) / rows, RED),
        ("rows cut off", totals["truncated"] / rows, RED),
        ("duplicates", totals["duplicates"] / documents, RED),
        *((f"not read: {plain_text(name[:28])}", count / rows, QUIET) for name, count in not_read),
    ]
    names, shares, colours = zip(*bars, strict=True)
    ax.barh(names, shares, color=colours)
    for row_number, share in enumerate(shares):
        ax.text(min(share, 1.0) + 0.01, row_number, f"{share:.1%}", va="center", fontsize=9, color=INK)
    ax.set_xlim(0, 1.15)
    ax.invert_yaxis()
    ax.set_xticks([])
    title(ax, "Share")
    plain(ax, "x")


if __name__ == "__main__":
    sys.exit(main())
