"""``python -m paceline.watch.evaluation_plot EVALUATIONS PNG``: a picture of what ``paceline evaluate``
found, by step where the models are a run's checkpoints, else by name.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.launch.exit_handling import ended
from paceline.launch.redacted_output import redacted
from paceline.runlog.redact import printable
from paceline.watch import codes
from paceline.watch.axes import BLUE, INK, QUIET, plain, title
from paceline.watch.picture import exit_code_of, write_png

_COLUMNS = 3
_NAME_LENGTH = 24
_LEFT_OUT = ("rows", "tokens", "step", "answers", "rows_skipped", "rows_truncated", "judged")
_SHARES = ("token_accuracy", "exact_match", "numeric", "f1", "math_verify", "answers_ended")
_SHARE_PREFIXES = ("pass@", "rouge")


def draw_evaluations(evaluations: Sequence[Mapping[str, Any]], to: Path) -> Path:
    """Write a PNG and return its path. ``evaluations``: what ``paceline evaluate --json`` prints.

    Raises ConfigError if it cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    flat = [{**{k: v for k, v in one.items() if k != "scores"}, **one["scores"]} for one in evaluations]
    names = [name for name in dict.fromkeys(n for one in flat for n in one) if _drawn(name, flat)]
    columns = min(_COLUMNS, len(names))
    lines = math.ceil(len(names) / columns)
    figure = Figure(figsize=(4.4 * columns, 3.4 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    for ax, name in zip(axes, names, strict=False):
        _panel(ax, name, flat)
    for ax in axes[len(names) :]:
        ax.set_axis_off()
    return write_png(figure, to, codes.PLOT_WRITE, "give --plot another file")


def _drawn(name: str, flat: Sequence[Mapping[str, Any]]) -> bool:
    numbers = [one.get(name) for one in flat]
    return name not in _LEFT_OUT and any(isinstance(one, (int, float)) for one in numbers)


def _panel(ax: Any, name: str, flat: Sequence[Mapping[str, Any]]) -> None:
    share = name in _SHARES or name.startswith(_SHARE_PREFIXES)
    points = [(one, float(one[name])) for one in flat if isinstance(one.get(name), (int, float))]
    values = [value * (100 if share else 1) for _, value in points]
    steps = [one["step"] for one, _ in points]
    if (
        len(set(steps)) == len(steps)
        and None not in steps
        and len({Path(o["path"]).parent for o, _ in points}) == 1
    ):
        ax.plot(steps, values, color=BLUE, marker="o", markersize=4, linewidth=1.5)
        ax.set_xlabel("step", fontsize=9, color=QUIET)
        ax.xaxis.get_major_locator().set_params(integer=True)
        plain(ax)
    else:
        labels = [printable(str(one["name"]))[-_NAME_LENGTH:].replace("$", r"\$") for one, _ in points]
        ax.barh(range(len(values)), values, color=BLUE)
        ax.set_yticks(range(len(values)), labels)
        ax.invert_yaxis()
        plain(ax, "x")
        for place, value in enumerate(values):
            ax.text(value, place, f" {value:.4g}", va="center", fontsize=8, color=INK)
        ax.margins(x=0.15)
    title(ax, printable(name).replace("_", " ").replace("$", r"\$") + (", %" if share else ""))


@redacted
@ended
def main(argv: Sequence[str] | None = None) -> int:
    """Draw; return the exit code."""
    evaluations, to = sys.argv[1:] if argv is None else argv
    return exit_code_of(lambda: draw_evaluations(json.loads(Path(evaluations).read_text("utf-8")), Path(to)))


if __name__ == "__main__":
    sys.exit(main())
