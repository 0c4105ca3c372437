"""Plot a forecast by layout: memory by term with error bars, speed, and where the time of a step goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.plan.cost.coefficients import spread
from paceline.plan.cost.report import COMMUNICATION, Forecast, short_mesh
from paceline.plan.cost.search import GIB, MARGIN, Candidate
from paceline.watch import codes
from paceline.watch.figure import BLUE, GREEN, GRID, INK, ORANGE, PURPLE, QUIET, RED, new_figure, write_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
#: (label, terms of ``Speed``, colour).
TIMES = (
    ("compute", ("compute",), GREEN),
    (
        "exposed communication",
        COMMUNICATION,
        ORANGE,
    ),
    ("pipeline bubble", ("bubble",), "#e0b021"),
    ("offload", ("offload",), "#c26a9b"),
    ("optimizer step", ("optimizer",), "#1d4470"),
    ("other models, generation", ("others", "generation"), PURPLE),
)
FASTEST, SLOWER = GREEN, "#a9b4c0"
BAR = 0.66  # height of a bar; rows are 1 apart
Row = tuple[Candidate, str]


def draw(forecast: Forecast, target: Path) -> Path:
    """Write the plot to ``target`` (PNG), replacing it atomically.

    Raises ConfigError when it cannot be written.
    """
    # Three axes that share the rows: memory, speed, and the parts of a step's time
    rows = layouts_of(forecast)
    height = 2.7 + 0.42 * len(rows)
    figure = new_figure(16, height, facecolor="white")
    machine, top, bottom = forecast.spec.cluster.machine, 1 - 0.95 / height, 1.25 / height
    panel = (top - bottom - 0.02,)
    left = figure.add_axes((0.185, bottom, 0.315, *panel))
    middle = figure.add_axes((0.52, bottom, 0.215, *panel), sharey=left)
    right = figure.add_axes((0.755, bottom, 0.235, *panel), sharey=left)
    title = f"{forecast.name} on {forecast.spec.cluster.cards} × {machine.name}"
    figure.text(0.009, 1 - 0.36 / height, title, fontsize=15, color=INK, weight="bold")
    subtitle = (
        f"{forecast.spec.rows} rows of {forecast.spec.seq_len} tokens per step; the fastest layout of every"
        " strategy, else the smallest; its leanest where that needs a tenth less; r: with recomputation;"
        " error bars: 80 % of published rows"
    )
    figure.text(0.009, 1 - 0.66 / height, subtitle, fontsize=9.5, color=QUIET)
    candidates = [row for row, _ in rows]
    _memory(left, candidates, machine.memory / GIB)
    left.set_yticks(range(len(rows)), [_label(row, word) for row, word in rows])
    left.tick_params(axis="y", labelsize=8, length=0, labelcolor=INK)
    left.set_ylim(len(rows) - 0.4, -0.6)
    _speed(middle, candidates, forecast.chosen)
    _time(right, candidates)
    for axes, place, columns in ((left, 0.185, 4), (right, 0.60, 3)):
        figure.legend(
            *axes.get_legend_handles_labels(),
            loc="lower left",
            bbox_to_anchor=(place, 0.0),
            ncols=columns,
            frameon=False,
            fontsize=8.5,
            handlelength=1.0,
            columnspacing=1.1,
        )
    return write_png(figure, target, codes.PLAN_PICTURE, "give --picture another file")


def layouts_of(forecast: Forecast) -> list[Row]:
    """Return the layouts to draw with a word on each: those that fit by speed, then the others by memory."""
    rows: list[Row] = [(row, "") for row in forecast.rows]
    rows += [(row, "leanest") for row in forecast.leanest]
    if forecast.own is not None:
        rows.append((forecast.own, "this config"))
    return sorted(
        rows,
        key=lambda r: (not r[0].safe, r[0].step / r[0].work.step_tokens if r[0].safe else r[0].bytes),
    )


def _label(row: Candidate, word: str) -> str:
    name = row.strategy if row.work.world > 1 else "single"
    micro = f"{row.work.micro_batch}×{row.work.accumulation}{'r' if row.work.recompute == 'full' else ''}"
    return f"{name}{f' ({word})' if word else ''}\n{short_mesh(row)}, {micro}"


def _memory(axes: Axes, rows: Sequence[Candidate], card: float) -> None:
    width = 1.55 * card  # GiB; longer bars are compressed to it, so that every term is seen
    scales = [min(1.0, width / max(row.bytes / GIB, 1e-9)) for row in rows]
    starts = [0.0] * len(rows)
    for label, terms, colour in STACK:
        sizes = [
            scale * sum(float(getattr(row.peak, name)) * row.memory_factor / GIB for name in terms)
            for row, scale in zip(rows, scales, strict=True)
        ]
        if any(sizes):
            axes.barh(range(len(rows)), sizes, left=starts, height=BAR, color=colour, label=label)
        starts = [start + size for start, size in zip(starts, sizes, strict=True)]
    axes.axvline(card, color=RED, linewidth=1.4)
    axes.axvline(card * MARGIN, color=RED, linewidth=0.8, linestyle=(0, (4, 3)))
    # Totals: after the error bar, or inside a compressed bar with an arrow
    for number, (row, scale) in enumerate(zip(rows, scales, strict=True)):
        total = row.bytes / GIB
        if scale < 1.0:
            _inside(axes, width, number, f"{total:,.0f} ▸")
            continue
        low, high = spread("memory")
        _error(axes, total, number, low, high)
        text = f"{total:,.0f}" if total >= 10 else f"{total:.1f}"
        _after(axes, max(total, total * high), number, text, width, INK)
    axes.set_xlim(0, width)
    axes.set_title(
        f"memory of the fullest rank, GiB (device: {card:.0f}; dashed: for plans; ▸ compressed)",
        fontsize=9,
        color=QUIET,
        loc="left",
        pad=5,
    )
    _plain(axes)


def _inside(axes: Axes, end: float, number: int, text: str) -> None:
    axes.text(0.985 * end, number, text, va="center", ha="right", fontsize=8.5, color="white", weight="bold")


def _after(axes: Axes, end: float, number: int, text: str, width: float, colour: str) -> None:
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    axes.text(end + 0.012 * width, number, text, va="center", fontsize=8.5, color=colour, bbox=box)


def _error(axes: Axes, value: float, number: int, low: float, high: float) -> None:
    """Draw the range of 80 % of published rows around a predicted value."""
    axes.errorbar(
        value,
        number,
        xerr=[[value * (1 - low)], [value * max(0.0, high - 1)]],
        fmt="none",
        ecolor=INK,
        elinewidth=0.9,
        capsize=2.5,
    )


def _speed(axes: Axes, rows: Sequence[Candidate], chosen: Candidate | None) -> None:
    speeds = [row.work.step_tokens / row.step / row.work.world if row.safe else 0.0 for row in rows]
    low, high = spread("speed")
    most = max([*speeds, 1.0]) * max(1.0, high)
    axes.barh(
        range(len(rows)), speeds, height=BAR, color=[FASTEST if row is chosen else SLOWER for row in rows]
    )
    for number, (row, speed) in enumerate(zip(rows, speeds, strict=True)):
        if not row.safe:
            text = "tight" if row.fits else "does not fit" if not row.impossible else row.impossible
            axes.text(0.012 * most, number, text, va="center", fontsize=8.5, color=RED)
            continue
        _error(axes, speed, number, low, high)
        text = f"{speed:,.0f}  MFU {row.speed.mfu / row.time_factor:.0%}"
        _after(axes, speed * max(1.0, high), number, text, most, INK)
    axes.set_xlim(0, 1.42 * most)
    axes.set_title("tokens per second and device", fontsize=9, color=QUIET, loc="left", pad=5)
    axes.tick_params(axis="y", labelleft=False, length=0)
    _plain(axes)


def _time(axes: Axes, rows: Sequence[Candidate]) -> None:
    starts = [0.0] * len(rows)
    for label, terms, colour in TIMES:
        shares = [
            100 * sum(float(getattr(row.speed, term)) for term in terms) / row.speed.step if row.safe else 0.0
            for row in rows
        ]
        if max(shares) >= 0.05:
            axes.barh(range(len(rows)), shares, left=starts, height=BAR, color=colour, label=label)
        starts = [start + share for start, share in zip(starts, shares, strict=True)]
    for number, row in enumerate(rows):
        if row.safe:
            _after(
                axes,
                100.0,
                number,
                f"{row.step:.2f} s" if row.step < 10 else f"{row.step:,.0f} s",
                100.0,
                INK,
            )
    axes.set_xlim(0, 122)
    axes.set_xticks([0, 25, 50, 75, 100])
    axes.set_title(
        "where a step's time goes, % (and its seconds)", fontsize=9, color=QUIET, loc="left", pad=5
    )
    axes.tick_params(axis="y", labelleft=False, length=0)
    _plain(axes)


def _plain(axes: Axes) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.tick_params(axis="x", labelsize=8, labelcolor=QUIET, color=GRID)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
