"""Data that fill no optimizer step. No torch."""

from __future__ import annotations

from paceline.core.diagnostics import Diagnostic
from paceline.training import codes


def no_steps(rows: int, batch: str) -> Diagnostic:
    """Return the error for ``rows`` rows of which ``dataloader_drop_last`` leaves none."""
    return codes.TRAINING_NO_STEPS("training.dataloader_drop_last", f"{rows} rows; {batch}")
