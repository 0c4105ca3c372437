"""The way back to a run's last checkpoint, in the same processes."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.runtime.process_group.world import World
from paceline.training.checkpointing.resume import ResumeCandidates
from paceline.training.reporting.observers import Observers
from paceline.training.run.record import RunRecord


@dataclass(frozen=True)
class LastCheckpoint:
    """Opens the last durable checkpoint of ``run``, or the one from which it was resumed."""

    run: RunRecord
    world: World
    observers: Observers

    def find(self) -> ResumeCandidates | None:
        """Open it; None: nothing has been saved. Collective."""
        saved = self.run.checkpoint
        return self.run.find_resume(self.world, self.observers, saved) if saved else None

    def went(self, resumes: ResumeCandidates, step: int) -> None:
        """Record a new attempt from ``step`` on, which supersedes the steps after it. Collective."""
        run = self.run
        assert run.trainer is not None
        run.end_resume(self.world, self.observers, resumes)
        self.observers.hear(run.start_event(self.world, step, run.trainer.cadence.total_steps, 0.0))
