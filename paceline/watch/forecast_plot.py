"""Plot a forecast: peak memory by strategy, stacked by term, against the card's capacity; and throughput."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.plan.cost.report import Forecast, short_mesh
from paceline.plan.cost.search import GIB, MARGIN, Candidate
from paceline.watch import codes
from paceline.watch.figure import BLUE, GREEN, GRID, INK, ORANGE, PURPLE, QUIET, RED, new_figure, write_png

#: (label, terms of ``Peak`` that are summed under it, colour).
STACK = (
    ("weights", ("parameters",), BLUE),
    ("gradients", ("gradients",), "#7fb0e0"),
    ("optimizer", ("optimizer",), "#1d4470"),
    ("activations", ("attention", "mlp", "checkpoints", "images"), GREEN),
    ("logits and loss", ("logits",), "#e0b021"),
    ("gathered", ("gathered",), ORANGE),
    ("other models", ("others",), PURPLE),
    ("overheads", ("fragments", "overhead"), "#9aa3ad"),
)
FASTEST, SLOWER = GREEN, "#a9b4c0"


def draw(forecast: Forecast, target: Path) -> Path:
    """Write the plot to ``target`` (PNG), replacing it atomically.

    Raises ConfigError when it cannot be written.
    """
    # Two axes that share the rows: memory on the left, throughput on the right
    rows = list(forecast.rows)
    height = 2.3 + 0.42 * len(rows)
    figure = new_figure(12, height, facecolor="white")
    machine, top = forecast.spec.cluster.machine, 1 - 0.95 / height
    left = figure.add_axes((0.235, 0.95 / height, 0.40, top - 0.95 / height - 0.02))
    right = figure.add_axes((0.665, 0.95 / height, 0.315, top - 0.95 / height - 0.02), sharey=left)
    title = f"{forecast.name} on {forecast.spec.cluster.cards} × {machine.name}"
    figure.text(0.012, 1 - 0.36 / height, title, fontsize=15, color=INK, weight="bold")
    subtitle = (
        f"{forecast.spec.rows} rows of {forecast.spec.seq_len} tokens per step; for every strategy"
        " its fastest layout that fits, else the smallest"
    )
    figure.text(0.012, 1 - 0.66 / height, subtitle, fontsize=9.5, color=QUIET)
    _memory(left, rows, machine.memory / GIB)
    _speed(right, rows, forecast.chosen)
    figure.legend(
        *left.get_legend_handles_labels(),
        loc="lower left",
        bbox_to_anchor=(0.225, 0.0),
        ncols=8,
        frameon=False,
        fontsize=8.5,
        handlelength=1.0,
        columnspacing=1.1,
    )
    return write_png(figure, target, codes.PLAN_PICTURE, "give --picture another file")


def _memory(axes: Any, rows: list[Candidate], card: float) -> None:
    width = 1.55 * card  # GiB; longer bars are cut off there
    ends = [0.0] * len(rows)
    for label, terms, colour in STACK:
        starts = [min(end, width) for end in ends]
        ends = [end + sum(_gib(row, name) for name in terms) for end, row in zip(ends, rows, strict=True)]
        sizes = [min(end, width) - start for start, end in zip(starts, ends, strict=True)]
        axes.barh(range(len(rows)), sizes, left=starts, height=0.68, color=colour, label=label)
    axes.axvline(card, color=RED, linewidth=1.4)
    axes.axvline(card * MARGIN, color=RED, linewidth=0.8, linestyle=(0, (4, 3)))
    # Totals: after the bar, or inside it with an arrow where it is cut off
    for row_number, row in enumerate(rows):
        total = row.bytes / GIB
        beyond = total > width
        axes.text(
            min(total, width) - (0.015 * width if beyond else -0.012 * width),
            row_number,
            f"{total:,.0f}" + (" ▸" if beyond else ""),
            va="center",
            ha="right" if beyond else "left",
            fontsize=8.5,
            color="white" if beyond else INK,
            weight="bold" if beyond else "normal",
            bbox=None if beyond else {"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        )
    axes.set_xlim(0, width)
    axes.set_title(
        f"memory of the fullest rank, GiB (device: {card:.0f}; plans stay below the dashed line)",
        fontsize=9,
        color=QUIET,
        loc="left",
        pad=5,
    )
    axes.set_yticks(
        range(len(rows)),
        [f"{row.strategy if row.work.world > 1 else 'single'}\n{short_mesh(row)}" for row in rows],
    )
    axes.tick_params(axis="y", labelsize=8, length=0, labelcolor=INK)
    axes.invert_yaxis()
    _plain(axes)


def _gib(row: Candidate, term: str) -> float:
    return float(getattr(row.peak, term)) * row.memory_factor / GIB


def _speed(axes: Any, rows: list[Candidate], chosen: Candidate | None) -> None:
    speeds = [row.work.step_tokens / row.step / row.work.world if row.safe else 0.0 for row in rows]
    most = max([*speeds, 1.0])
    axes.barh(
        range(len(rows)), speeds, height=0.68, color=[FASTEST if row is chosen else SLOWER for row in rows]
    )
    for row_number, (row, speed) in enumerate(zip(rows, speeds, strict=True)):
        text = (
            f"{speed:,.0f}  MFU {row.speed.mfu / row.time_factor:.0%}"
            if row.safe
            else "does not fit"
            if not row.impossible
            else row.impossible
        )
        axes.text(
            speed + 0.012 * most, row_number, text, va="center", fontsize=8.5, color=INK if row.safe else RED
        )
    axes.set_xlim(0, 1.38 * most)
    axes.set_title("tokens per second and device", fontsize=9, color=QUIET, loc="left", pad=5)
    axes.tick_params(axis="y", labelleft=False, length=0)
    _plain(axes)


def _plain(axes: Any) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.tick_params(axis="x", labelsize=8, labelcolor=QUIET, color=GRID)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
