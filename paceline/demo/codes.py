"""Codes of the demo."""

from __future__ import annotations

from paceline.core.diagnostics import Code

BENCH_OPTIONS = Code(
    "bench.options",
    "The measurement needs at least one step, a micro-batch of at least one row and at least one process.",
)
BENCH_RUN_FAILED = Code(
    "bench.run_failed",
    "One of the short runs of the measurement ended with an error; its last lines are shown. Fix"
    " the cause, then measure again.",
)

DEMO_NOT_EMPTY = Code(
    "demo.not_empty",
    "The demo writes to a new directory and overwrites nothing. Give --to with a new directory, or"
    " leave --to out: the next free name is used.",
)
DEMO_NOT_WRITABLE = Code(
    "demo.not_writable",
    "The demo cannot write to the given place. Give --to with a folder that you can write to.",
)
DEMO_OPTIONS = Code(
    "demo.options",
    "An option of the demo has a value that it cannot use; the message shows a valid one.",
)
DEMO_STEP_FAILED = Code(
    "demo.step_failed",
    "A command of the demo ended with an error. The reason is above this message, with its own code.",
)
