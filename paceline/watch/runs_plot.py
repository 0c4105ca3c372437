"""``python -m paceline.watch.runs_plot PNG RUN RUN…``: the curves of several runs on one picture."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.core.rundir import RunDir
from paceline.launch.exit_handling import ended
from paceline.launch.redacted_output import redacted
from paceline.runlog.history import History, load_history
from paceline.runlog.redact import printable
from paceline.watch import codes
from paceline.watch.axes import BLUE, GREEN, INK, ORANGE, PURPLE, QUIET, RED, plain, title
from paceline.watch.picture import exit_code_of, write_png

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, RED)
_LINES = ("-", "--", ":")
_NAMED = 12


def draw_runs(runs: Sequence[Path], to: Path) -> Path:
    """Write a PNG with loss, evaluation loss, learning rate and throughput of runs, and return its path.

    Raises ConfigError if it cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 7.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2).ravel()
    histories = [load_history(RunDir.at(run)) for run in runs]
    for number, (run, history) in enumerate(zip(runs, histories, strict=True)):
        style = {
            "color": _COLOURS[number % len(_COLOURS)],
            "linestyle": _LINES[number // len(_COLOURS) % len(_LINES)],
            "label": printable(run.name)[-32:].replace("$", r"\$") if number < _NAMED else None,
            "linewidth": 1.5,
        }
        _curves(panels, history, style)
    names = ("Loss", "Evaluation loss", "Learning rate", "Tokens per second")
    for ax, name in zip(panels, names, strict=True):
        title(ax, name)
        plain(ax)
        ax.set_xlabel("step", fontsize=9, color=QUIET)
        ax.xaxis.get_major_locator().set_params(integer=True)
    if any(history.steps for history in histories):
        panels[0].legend(fontsize=8.5, frameon=False, labelcolor=INK)
    return write_png(figure, to, codes.PLOT_WRITE, "give another file")


def _curves(panels: Any, history: History, style: dict[str, Any]) -> None:
    steps = list(history.steps)
    events = list(history.steps.values())
    evals = [
        (step, one.metrics["eval_loss"]) for step, one in history.evals.items() if "eval_loss" in one.metrics
    ]
    panels[0].plot(steps, [one.loss for one in events], **style)
    panels[1].plot(
        [step for step, _ in evals], [loss for _, loss in evals], marker="o", markersize=3, **style
    )
    panels[2].plot(steps, [one.lr for one in events], **style)
    panels[3].plot(steps, [one.tokens_per_second for one in events], **style)


@redacted
@ended
def main(argv: Sequence[str] | None = None) -> int:
    """Draw; return the exit code."""
    to, *runs = sys.argv[1:] if argv is None else argv
    return exit_code_of(lambda: draw_runs([Path(run) for run in runs], Path(to)))


if __name__ == "__main__":
    sys.exit(main())
