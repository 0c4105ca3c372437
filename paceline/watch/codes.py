"""Diagnostic codes of plots."""

from __future__ import annotations

from paceline.core.diagnostics import Code

PLOT_NO_EVENTS = Code(
    "plot.no_events",
    "The run has no events yet, so there is nothing to draw. Name a run directory, or wait for its first"
    " step.",
)
PLOT_WRITE = Code("plot.write", "The picture cannot be written to this path. Give another file with --to.")

PLAN_PICTURE = Code(
    "plan.picture", "The forecast's picture cannot be written to this path. Give another file with --picture."
)

REPORT_WRITE = Code("report.write", "The report cannot be written to this path. Give another file with --to.")
