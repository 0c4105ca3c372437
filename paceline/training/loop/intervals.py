"""When to log, evaluate and save, as pure functions of the step; and when to collect garbage.

A collection of all of Python's generations takes tens of milliseconds where Transformers is loaded. If it
falls into a micro-batch of one rank, all other ranks wait. Reference counting frees most objects; only cycles
need a collection.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from paceline.config.sections.training import TrainingSection
from paceline.config.sections.training_steps import every


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

    @staticmethod
    def of(t: TrainingSection, total_steps: int) -> Cadence:
        """Read the config's intervals for a run of ``total_steps``."""
        logging_steps = every(t.logging_steps, total_steps)
        return Cadence(
            total_steps=total_steps,
            logging_steps=logging_steps,
            logging_first_step=t.logging_first_step,
            eval_strategy=t.eval_strategy,
            eval_steps=every(t.eval_steps, total_steps) if t.eval_steps else logging_steps,
            save_strategy=t.save_strategy,
            save_steps=every(t.save_steps, total_steps),
            keep_best=t.load_best_model_at_end,
        )

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

    @property
    def saves_at_all(self) -> bool:
        """Whether the run writes checkpoints without a stop."""
        return self.save_strategy != "no"

    def saves(self, step: int, epoch_end: bool, improved: bool) -> bool:
        """Whether to save a checkpoint now; always after the last step, unless saving is off."""
        if not self.saves_at_all:
            return False
        if step == self.total_steps or (improved and self.keep_best):
            return True
        if self.save_strategy == "best":
            return improved
        return epoch_end if self.save_strategy == "epoch" else step % self.save_steps == 0


EVERY = 50  # steps
MANY = 50_000  # new objects that may lie in cycles: then earlier


class Garbage:
    """Collects garbage between steps: at the same steps on every rank, and on a rank with many new
    objects."""

    def between_steps(self, step: int) -> None:
        """Collect after every ``EVERY``-th step, and if ``MANY`` new objects are alive."""
        # The step is the same on all ranks, so that they pause together rather than in turn.
        if step % EVERY == 0 or gc.get_count()[0] > MANY:
            gc.collect()


@contextmanager
def collected_between_steps() -> Iterator[Garbage]:
    """Inside, only ``between_steps`` collects garbage; objects that exist at the start are excluded.

    Afterwards the previous settings apply again.
    """
    enabled = gc.isenabled()
    gc.collect()
    # what exists now lives to the end: a collection need not look at it
    gc.freeze()
    gc.disable()
    try:
        yield Garbage()
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()
