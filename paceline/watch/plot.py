"""``python -m paceline.watch.plot RUN [--to FILE]``: plot a run's loss, accuracy, throughput and memory."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from paceline.core.errors import ConfigError, ExitCode
from paceline.core.rundir import RunDir
from paceline.core.security.file_permissions import written_into
from paceline.core.units import human_seconds
from paceline.launch.program import program
from paceline.runlog.history import History, load_history
from paceline.runlog.lines import is_share, utilisation
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
    Curve,
    dots,
    frame,
    label_if_empty,
    new_figure,
    of_evaluations,
    percents,
    plain_text,
    raw_and_mean,
    running_mean,
    share_limits,
    title,
    write_png,
)
from paceline.watch.panels import panels_of

_OUTCOME_COLOURS = {
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
    figure = draw_history(history, run.root.name)
    return write_png(figure, to or run.plot_png, codes.PLOT_WRITE, "give --to another file")


def draw_history(history: History, name: str) -> Any:
    """Return the figure of a run: four panels, and two more that its algorithm has."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    more = panels_of(history)
    engine = ConstrainedLayoutEngine(rect=(0.005, 0.005, 0.99, 0.885), hspace=0.07, wspace=0.04)
    figure = new_figure(15.5 if more else 11, 7, layout=engine)
    _title(figure, history, name)
    axes = figure.subplots(2, 3 if more else 2)
    for ax, draw in zip(axes[:, :2].flat, (_loss, _accuracy, _throughput, _memory), strict=True):
        draw(ax, history)
    for ax, panel in zip(axes[:, 2] if more else (), more, strict=True):
        panel.draw(ax, history)
    total = (history.started.total_steps or 0) if history.started else 0
    last = max(history.last_step, *history.evals, total, 1)
    without_steps = {axes[row][2] for row, panel in enumerate(more) if not panel.by_step}
    for ax in axes.flat:
        frame(ax, history, None if ax in without_steps else last)
    return figure


def _title(figure: Any, history: History, name: str) -> None:
    started, outcome = history.started, history.outcome
    total = f" of {started.total_steps}" if started and started.total_steps else ""
    facts = [f"step {history.last_step}{total}", human_seconds(history.seconds)]
    if started:
        processes = f"{started.world_size} process{'es' if started.world_size != 1 else ''}"
        facts += [processes, started.description]
    facts.append(f"resumed {len(history.restarts)}×" if history.restarts else "")
    line = plain_text(" · ".join(filter(None, facts)))
    line = line if len(line) < 150 else line[:149] + "…"
    figure.text(0.014, 0.955, plain_text(name), fontsize=15, fontweight="bold", color=INK, va="center")
    figure.text(0.014, 0.922, line, fontsize=9.5, color=QUIET, va="center")
    right = {"ha": "right", "va": "center"}
    colour = _OUTCOME_COLOURS.get(outcome, QUIET)
    badge = {"facecolor": colour, "edgecolor": "none", "boxstyle": "round,pad=0.4"}
    figure.text(0.985, 0.955, outcome.replace("_", " "), fontsize=10, color="white", bbox=badge, **right)
    if history.errors and outcome == "failed":
        error = history.errors[0]
        words = plain_text(f"rank {error.rank}: {error.diagnostic.code}: {error.diagnostic.what}")
        figure.text(0.985, 0.922, words[:90], fontsize=8.5, color=RED, **right)


def _loss(ax: Any, history: History) -> None:
    title(ax, "Loss")
    curve = Curve.of({step: e.loss for step, e in history.steps.items()})
    raw_and_mean(ax, curve, BLUE, "training")
    held_out = of_evaluations(history, "eval_loss")
    if held_out:
        dots(ax, held_out, ORANGE, "held out", linewidth=1.6)
    # Steps whose loss is not finite: crosses on the bottom edge
    lost = [step for step, e in history.steps.items() if not math.isfinite(e.loss)]
    saved = [step for step in history.checkpoints if step <= history.last_step]
    for steps, height, mark, colour, size, label in (
        (lost, 0.02, "x", RED, 6, "not a number"),
        (saved, 0, "^", INK, 5, "checkpoint"),
    ):
        if steps:
            on_axis = {"transform": ax.get_xaxis_transform(), "clip_on": False, "zorder": 5}
            ax.plot(steps, [height] * len(steps), mark, color=colour, markersize=size, label=label, **on_axis)
    # A log scale when losses span more than a factor of 30
    values = curve.y + held_out.y
    if values and min(values) > 0 and max(values) / min(values) > 30:
        ax.set_yscale("log")
    elif values and 0 <= min(values) < 0.6 * max(values):
        ax.set_ylim(bottom=0)
    if history.restarts:  # ``frame`` draws them
        ax.plot([], [], ":", color=RED, linewidth=0.9, label="resumed")
    label_if_empty(ax, bool(values or lost), "no step yet")


def _accuracy(ax: Any, history: History) -> None:
    ranked = Curve.of(
        {step: e.extras[n] for step, e in history.steps.items() for n in _RANKED if n in e.extras}
    )
    raw_and_mean(ax, ranked, BLUE, "training pairs")
    # Up to four shares of the evaluations, exact match first
    names = sorted(
        {n for e in history.evals.values() for n in e.metrics if is_share(n)},
        key=lambda n: ("exact" not in n, n),
    )
    only_tokens = names == ["eval_token_accuracy"] and not history.answers
    title(ax, "Accuracy" if ranked else f"{'Token accuracy' if only_tokens else 'Accuracy'} on held-out data")
    shares = [*ranked.y]
    colours = (GREEN, PURPLE, ORANGE, RED if ranked else BLUE)
    for name, colour in zip(names[:4], colours, strict=False):
        curve = of_evaluations(history, name)
        last = curve.y[-1] if curve else math.nan
        dots(ax, curve, colour, f"{name.removeprefix('eval_').replace('_', ' ')} {last:.1%}")
        shares += curve.y
    # Share of correct answers to the held-out questions, unless an evaluation reports it
    answered = Curve.of(
        {
            step: sum(bool(row.get("correct")) for row in answers.rows) / len(answers.rows)
            for step, answers in history.answers.items()
            if answers.rows
        }
    )
    if answered and not any("exact" in n for n in names):
        style = {"marker": "s", "linestyle": "--", "markersize": 5}
        dots(ax, answered, GREEN, f"answers correct {answered.y[-1]:.1%}", **style)
    ax.set_ylim(*share_limits([*shares, *answered.y]))
    percents(ax.yaxis)
    label_if_empty(ax, bool(names or answered or ranked), "not evaluated")


def _throughput(ax: Any, history: History) -> None:
    title(ax, "Tokens per second")
    curve = Curve.of({step: e.tokens_per_second for step, e in history.steps.items()})
    raw_and_mean(ax, curve, GREEN, "all ranks")
    if curve:
        typical = sorted(curve.y)[len(curve.y) // 2]
        ax.axhline(typical, color=QUIET, linewidth=0.9, linestyle=DASHED, label=f"median {typical:,.0f}")
        ax.set_ylim(0, 1.15 * max(running_mean(curve.y) + [typical]))
    # never NaN: counts and seconds
    used = sorted(history.steps.values(), key=lambda e: e.mfu or e.of_product or 0.0)
    if used and (parts := utilisation(used[len(used) // 2])):
        ax.set_title("median " + " ".join(parts[0]), loc="right", fontsize=9, color=QUIET)
    ax.yaxis.set_major_formatter("{x:,.0f}")
    label_if_empty(ax, bool(curve), "no step yet")


def _memory(ax: Any, history: History) -> None:
    title(ax, "Peak memory of the worst rank, GiB")
    curve = Curve.of({step: used / GIB for step, used in history.peak_memory.items()})
    if curve:
        ax.fill_between(curve.x, curve.y, color=PURPLE, alpha=0.12, linewidth=0)
        ax.plot(curve.x, curve.y, color=PURPLE, linewidth=1.8)
        offset = {"xytext": (-4, 7), "textcoords": "offset points", "ha": "right"}
        end = (curve.x[-1], curve.y[-1])
        ax.annotate(f"{end[1]:.2f} GiB", end, fontsize=9, color=PURPLE, fontweight="bold", **offset)
        ax.set_ylim(0, 1.2 * max(curve.y))
    label_if_empty(ax, bool(curve), "not measured")


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Plot the run named in ``argv`` and return the exit code (``core.errors.ExitCode``)."""
    parser = argparse.ArgumentParser(prog="paceline plot", description=__doc__, allow_abbrev=False)
    parser.add_argument("run", help="a run directory")
    parser.add_argument("--to", type=Path, metavar="PNG", help="the file to write [RUN/plot.png]")
    args = parser.parse_args(argv)
    run = RunDir.at(args.run)
    with nullcontext() if args.to else written_into(run.root):
        print(plot_run(run, args.to))
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
