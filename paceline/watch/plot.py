"""``python -m paceline.watch.plot RUN [--to FILE]``: plot a run's loss, accuracy, throughput and memory."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from paceline.core.errors import ConfigError, ExitCode, PacelineError
from paceline.core.rundir import RunDir
from paceline.core.security.file_permissions import written_into
from paceline.core.units import human_seconds
from paceline.launch.exit_handling import ended
from paceline.launch.redacted_output import redacted
from paceline.runlog.history import History, load_history
from paceline.runlog.lines import is_share, utilisation
from paceline.runlog.redact import printable
from paceline.watch import codes
from paceline.watch.axes import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    QUIET,
    RED,
    frame,
    metric,
    percents,
    raw_and_mean,
    say_if_empty,
    say_last,
    share_limits,
    thousands,
    title,
)
from paceline.watch.curves import Curve, running_mean
from paceline.watch.panels import panels_of
from paceline.watch.picture import write_png

_OUTCOME_COLOUR = {
    "completed": GREEN,
    "early_stopped": GREEN,
    "stopped": ORANGE,
    "failed": RED,
    "running": BLUE,
}
GIB = 1024**3
_RANKED = ("accuracy", "rewards/accuracies")  # accuracy on preference pairs, reported every step


def plot_run(run: RunDir, to: Path | None = None) -> Path:
    """Plot ``run`` (finished, failed or still running), replacing the file atomically; return its path.

    ``to`` defaults to ``RUN/plot.png``. Raises ConfigError when the run has no events yet, or the file cannot
    be written.
    """
    history = load_history(run)
    if history.started is None and not history.steps:
        raise ConfigError(codes.PLOT_NO_EVENTS(str(run.root)))
    target = to or run.plot_png
    figure = draw_history(history, run.root.name)
    return write_png(figure, target, codes.PLOT_WRITE, "give --to another file")


def draw_history(history: History, name: str) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    engine = ConstrainedLayoutEngine(rect=(0.005, 0.005, 0.99, 0.885), hspace=0.07, wspace=0.04)
    more = panels_of(history)
    figure = Figure(figsize=(15.5 if more else 11, 7), layout=engine)
    FigureCanvasAgg(figure)
    _title(figure, history, name)
    axes = figure.subplots(2, 3 if more else 2)
    _loss(axes[0][0], history)
    _accuracy(axes[0][1], history)
    _throughput(axes[1][0], history)
    _memory(axes[1][1], history)
    last = max(
        [history.last_step, *history.evals, (history.started.total_steps or 0) if history.started else 0, 1]
    )
    for row, panel in enumerate(more):
        panel.draw(axes[row][2], history)
    alone = {axes[row][2] for row, panel in enumerate(more) if not panel.by_step}
    for ax in axes.flat:
        frame(ax, history, None if ax in alone else last)
    return figure


def _title(figure: Any, history: History, name: str) -> None:
    total = history.started.total_steps if history.started else None
    facts = [
        f"step {history.last_step}" + (f" of {total}" if total else ""),
        human_seconds(history.seconds),
    ]
    if history.started:
        facts.append(f"{history.started.world_size} process{'es' if history.started.world_size != 1 else ''}")
    if history.started and history.started.description:
        facts.append(history.started.description)
    facts.append(f"resumed {len(history.restarts)}×" if history.restarts else "")
    line = printable(" · ".join(f for f in facts if f)).replace("$", r"\$")
    figure.text(
        0.014,
        0.955,
        printable(name).replace("$", r"\$"),
        fontsize=15,
        fontweight="bold",
        color=INK,
        va="center",
    )
    figure.text(
        0.014, 0.922, line if len(line) < 150 else line[:149] + "…", fontsize=9.5, color=QUIET, va="center"
    )
    outcome = history.outcome
    badge = {
        "facecolor": _OUTCOME_COLOUR.get(outcome, QUIET),
        "edgecolor": "none",
        "boxstyle": "round,pad=0.4",
    }
    figure.text(
        0.985,
        0.955,
        outcome.replace("_", " "),
        fontsize=10,
        color="white",
        ha="right",
        va="center",
        bbox=badge,
    )
    if history.errors and outcome == "failed":
        error = history.errors[0]
        words = printable(f"rank {error.rank}: {error.diagnostic.code}: {error.diagnostic.what}").replace(
            "$", r"\$"
        )
        figure.text(0.985, 0.922, words[:90], fontsize=8.5, color=RED, ha="right", va="center")


def _loss(ax: Any, history: History) -> None:
    curve = Curve.of({s: e.loss for s, e in history.steps.items()})
    title(ax, "Loss")
    raw_and_mean(ax, curve, BLUE, "training")
    held_out = Curve.of({s: metric(e.metrics, "eval_loss") for s, e in history.evals.items()})
    if held_out:
        ax.plot(held_out.x, held_out.y, "o-", color=ORANGE, linewidth=1.6, markersize=4, label="held out")
    # Steps whose loss is not finite: crosses on the bottom edge
    lost = [s for s, e in history.steps.items() if not math.isfinite(e.loss)]
    if lost:
        ax.plot(
            lost,
            [0.02] * len(lost),
            "x",
            color=RED,
            markersize=6,
            transform=ax.get_xaxis_transform(),
            label="not a number",
            clip_on=False,
        )
    # A log scale when losses span more than a factor of 30
    values = curve.y + held_out.y
    if values and min(values) > 0 and max(values) / min(values) > 30:
        ax.set_yscale("log")
    elif values and 0 <= min(values) < 0.6 * max(values):
        ax.set_ylim(bottom=0)
    # Checkpoints: triangles on the axis; restarts are drawn by ``frame``
    saved = [s for s in history.checkpoints if s <= history.last_step]
    if saved:
        ax.plot(
            saved,
            [0] * len(saved),
            "^",
            color=INK,
            markersize=5,
            transform=ax.get_xaxis_transform(),
            clip_on=False,
            zorder=5,
            label="checkpoint",
        )
    if history.restarts:
        ax.plot([], [], ":", color=RED, linewidth=0.9, label="resumed")
    say_if_empty(ax, bool(values or lost), "no step yet")


def _accuracy(ax: Any, history: History) -> None:
    ranked = Curve.of(
        {s: metric(e.extras, n) for s, e in history.steps.items() for n in _RANKED if n in e.extras}
    )
    raw_and_mean(ax, ranked, BLUE, "training pairs")
    # Up to four shares of the evaluations, exact match first
    names = sorted(
        {n for e in history.evals.values() for n in e.metrics if is_share(n)},
        key=lambda n: ("exact" not in n, n),
    )
    only_tokens = names == ["eval_token_accuracy"] and not history.answers
    title(ax, "Accuracy" if ranked else f"{'Token accuracy' if only_tokens else 'Accuracy'} on held-out data")
    colours = (GREEN, PURPLE, ORANGE, RED) if ranked else (GREEN, PURPLE, ORANGE, BLUE)
    for name, colour in zip(names[:4], colours, strict=False):
        curve = Curve.of({s: metric(e.metrics, name) for s, e in history.evals.items()})
        label = f"{name.removeprefix('eval_').replace('_', ' ')} {curve.y[-1] if curve else math.nan:.1%}"
        ax.plot(curve.x, curve.y, "o-", color=colour, linewidth=1.8, markersize=4, label=label)
    # Share of correct answers to the held-out questions, unless an evaluation reports it
    answered = Curve.of(
        {
            s: sum(bool(r.get("correct")) for r in a.rows) / len(a.rows)
            for s, a in history.answers.items()
            if a.rows
        }
    )
    if answered and not any("exact" in n for n in names):
        ax.plot(
            answered.x,
            answered.y,
            "s--",
            color=GREEN,
            linewidth=1.8,
            markersize=5,
            label=f"answers correct {answered.y[-1]:.1%}",
        )
    held_out = [metric(e.metrics, n) for e in history.evals.values() for n in names[:4]]
    ax.set_ylim(*share_limits([*ranked.y, *answered.y, *held_out]))
    percents(ax)
    say_if_empty(ax, bool(names or answered or ranked), "not evaluated")


def _throughput(ax: Any, history: History) -> None:
    title(ax, "Tokens per second")
    curve = Curve.of({s: e.tokens_per_second for s, e in history.steps.items()})
    raw_and_mean(ax, curve, GREEN, "all ranks")
    if curve.y:
        typical = sorted(curve.y)[len(curve.y) // 2]
        ax.axhline(typical, color=QUIET, linewidth=0.9, linestyle=(0, (4, 3)), label=f"median {typical:,.0f}")
        ax.set_ylim(0, 1.15 * max(running_mean(curve.y) + [typical]))
    # never NaN: counts and seconds
    used = sorted(history.steps.values(), key=lambda e: e.mfu or e.of_product or 0.0)
    if used and (parts := utilisation(used[len(used) // 2])):
        ax.set_title("median " + " ".join(parts[0]), loc="right", fontsize=9, color=QUIET)
    thousands(ax)
    say_if_empty(ax, bool(curve.y), "no step yet")


def _memory(ax: Any, history: History) -> None:
    title(ax, "Peak memory of the worst rank, GiB")
    curve = Curve.of({s: used / GIB for s, used in history.peak_memory.items()})
    if curve.y:
        ax.fill_between(curve.x, curve.y, color=PURPLE, alpha=0.12, linewidth=0)
        ax.plot(curve.x, curve.y, color=PURPLE, linewidth=1.8)
        say_last(ax, curve, PURPLE, "{:.2f} GiB")
        ax.set_ylim(0, 1.2 * max(curve.y))
    say_if_empty(ax, bool(curve.y), "not measured")


@redacted
@ended
def main(argv: Sequence[str] | None = None) -> int:
    """Plot the run named in ``argv`` and return the exit code (``core.errors.ExitCode``)."""
    parser = argparse.ArgumentParser(prog="paceline plot", description=__doc__, allow_abbrev=False)
    parser.add_argument("run", help="a run directory")
    parser.add_argument(
        "--to", type=Path, default=None, metavar="PNG", help="the file to write [RUN/plot.png]"
    )
    args = parser.parse_args(argv)
    run = RunDir.at(args.run)
    try:
        with nullcontext() if args.to else written_into(run.root):
            print(plot_run(run, args.to))
    except PacelineError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
