"""How answers are cut into rollouts, rollouts into optimizer steps, and what an epoch counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.training.windows import BatchLayout


@dataclass(frozen=True)
class RolloutLayout:
    """How a rollout is cut: ``updates`` optimizer steps of ``batch_layout.global_batch`` answers, gone through ``passes`` times; ``group`` answers a prompt."""

    batch_layout: BatchLayout
    group: int
    updates: int
    passes: int

    @property
    def answers(self) -> int:
        """Answers of a rollout, all ranks together."""
        return self.updates * self.batch_layout.global_batch

    @property
    def groups(self) -> int:
        """Prompts of a rollout."""
        return self.answers // self.group

    @property
    def steps(self) -> int:
        """Optimizer steps of a rollout."""
        return self.updates * self.passes


class AnswerRows:
    """The rows of an epoch as training counts them: answers, passes over them included (a ``RowSource`` as far as epochs are counted)."""

    def __init__(self, prompts: Any, batch_layout: RolloutLayout, drop_last: bool) -> None:
        self.prompts, self.batch_layout, self.drop_last = prompts, batch_layout, drop_last

    def num_rows(self, epoch: int) -> int:
        """A multiple of the global batch: rollouts are whole, the last one filled up (or dropped)."""
        answers = self.prompts.num_rows(epoch) * self.batch_layout.group
        rollouts = answers // self.batch_layout.answers if self.drop_last else -(-answers // self.batch_layout.answers)
        return rollouts * self.batch_layout.answers * self.batch_layout.passes
