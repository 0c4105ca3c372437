"""Plans and runs as HTML for notebooks: small tables, a curve as SVG; all external text is escaped."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from paceline.core.diagnostics import Diagnostic
from paceline.core.units import human_bytes, human_count, human_seconds

if TYPE_CHECKING:
    from paceline.api.planning import PlannedRun
    from paceline.api.run import Run
    from paceline.runlog.history import History

WIDTH, HEIGHT = 480, 120
POINTS = 400  # of a curve, at most
_CELL = "padding:2px 10px 2px 0;text-align:left;vertical-align:top"


def plan_html(planned: PlannedRun) -> str:
    """Return a plan's headline, its decisions with their reasons, and the warnings."""
    rows = [
        (
            decision.subject,
            decision.choice if decision.granted else f"not applied: {decision.choice}",
            decision.reason,
        )
        for decision in planned.plan.decisions
    ]
    return f"<b>{html.escape(planned.plan.headline())}</b>{_table(rows)}{_findings(planned.warnings)}"


def run_html(run: Run) -> str:
    """Return a run's state, last numbers, loss curve, checkpoints and findings."""
    history = run.history
    rows = [("directory", str(run.path)), ("outcome", run.outcome), *_numbers(history)]
    rows += [
        (
            "checkpoint",
            f"step {checkpoint.step}, {human_bytes(checkpoint.bytes)}{', best' if checkpoint.best else ''}",
        )
        for checkpoint in run.checkpoints()[-3:]
    ]
    return f"{_table(rows)}{loss_curve(history)}{_findings(run.diagnostics)}"


def _numbers(history: History) -> list[tuple[str, str]]:
    last = history.steps.get(history.last_step)
    if last is None:
        return []
    rows = [
        ("step", str(last.step)),
        ("loss", f"{last.loss:.4f}"),
        ("learning rate", f"{last.lr:.3g}"),
        ("speed", f"{human_count(last.tokens_per_second)} tokens/s"),
        ("time", human_seconds(history.seconds)),
    ]
    if history.evals:
        metrics: Mapping[str, float] = history.evals[max(history.evals)].metrics
        rows += [(name, f"{value:.4g}") for name, value in metrics.items()]
    return rows


def loss_curve(history: History) -> str:
    """Return the loss of every step, and of every evaluation, as an SVG; empty before the second step."""
    train = _finite((step, event.loss) for step, event in history.steps.items())
    held = _finite((step, event.metrics.get("eval_loss", math.nan)) for step, event in history.evals.items())
    if len(train) < 2:
        return ""
    low, high = min(y for _, y in train + held), max(y for _, y in train + held)
    first, last = train[0][0], train[-1][0]

    def path(points: Sequence[tuple[int, float]]) -> str:
        kept = points[:: max(1, len(points) // POINTS)]
        return " ".join(
            f"{(x - first) / max(1, last - first) * WIDTH:.1f},"
            f"{HEIGHT - (y - low) / ((high - low) or 1) * HEIGHT:.1f}"
            for x, y in kept
        )

    lines = f'<polyline points="{path(train)}" fill="none" stroke="#4269d0" stroke-width="1.5"/>'
    if held:
        lines += f'<polyline points="{path(held)}" fill="none" stroke="#efb118" stroke-width="1.5"/>'
    return (
        f'<svg width="{WIDTH + 4}" height="{HEIGHT + 4}" viewBox="-2 -2 {WIDTH + 4} {HEIGHT + 4}"'
        f' role="img"><title>loss from {high:.4g} to {low:.4g}</title>{lines}</svg>'
    )


def _finite(points: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    return sorted((x, y) for x, y in points if math.isfinite(y))


def _table(rows: Iterable[Sequence[str]]) -> str:
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{html.escape(cell)}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table>{body}</table>"


def _findings(diagnostics: Iterable[Diagnostic]) -> str:
    text = "\n".join(finding.render() for finding in diagnostics)
    return f"<pre>{html.escape(text)}</pre>" if text else ""
