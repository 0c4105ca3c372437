"""When to log, evaluate and save: pure functions of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass


def every(interval: float, total_steps: int) -> int:
    """Convert an interval to steps; below 1 it is a fraction of the run, rounded up as TrainerState does."""
    return max(1, int(interval) if interval >= 1 else math.ceil(total_steps * interval))


@dataclass(frozen=True)
class Cadence:
    """When to log, evaluate and save.

    ``step`` counts finished optimizer steps from 1; ``epoch_end`` says whether it closed an epoch.
    """

    total_steps: int
    logging_steps: int
    logging_first_step: bool
    eval_strategy: str
    eval_steps: int
    save_strategy: str
    save_steps: int
    keep_best: bool = False  # load_best_model_at_end: the best evaluation's weights must be saved at any step

    def logs(self, step: int) -> bool:
        """Whether to log this step to console and trackers (the event log has every step)."""
        return (
            step % self.logging_steps == 0
            or step == self.total_steps
            or (step == 1 and self.logging_first_step)
        )

    def evaluates(self, step: int, epoch_end: bool) -> bool:
        """Whether to evaluate now; always after the last step, unless evaluation is off."""
        if self.eval_strategy == "no":
            return False
        if step == self.total_steps:
            return True
        return epoch_end if self.eval_strategy == "epoch" else step % self.eval_steps == 0

    def saves(self, step: int, epoch_end: bool, improved: bool) -> bool:
        """Whether to save a checkpoint now; always after the last step, unless saving is off."""
        if self.save_strategy == "no":
            return False
        if step == self.total_steps or (improved and self.keep_best):
            return True
        if self.save_strategy == "best":
            return improved
        return epoch_end if self.save_strategy == "epoch" else step % self.save_steps == 0
