"""Codes of the demo."""

from __future__ import annotations

from paceline.core.diagnostics import Code

BENCH_OPTIONS = Code(
    "bench.options",
    "The measurement needs at least one step, a micro-batch of at least one row and at least one process.",
)
BENCH_RUN_FAILED = Code(
    "bench.run_failed",
    "One of the short runs that the measurement is made of ended with an error; its last lines are shown."
    " Mend what they name, then measure again.",
)

DEMO_NOT_EMPTY = Code(
    "demo.not_empty",
    "The demo writes into a new directory and overwrites nothing. Give --to with a new directory, or leave"
    " --to out: the next free name is taken.",
)
DEMO_NOT_WRITABLE = Code(
    "demo.not_writable",
    "The demo cannot write where it was told to. Give --to with a place that you may write to.",
)
DEMO_OPTIONS = Code(
    "demo.options",
    "An option of the demo has a value that it cannot work with; the message shows one that it can.",
)
DEMO_STEP_FAILED = Code(
    "demo.step_failed",
    "A command that the demo runs ended with an error. The reason stands above this message, with a code of"
    " its own.",
)
