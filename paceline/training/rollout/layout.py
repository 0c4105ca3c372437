"""How answers are split into rollouts and rollouts into optimizer steps, and what counts as an epoch."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.data.packed_source import PackedSource
from paceline.training.loop.window_source import BatchLayout


@dataclass(frozen=True)
class RolloutLayout:
    """A rollout is ``updates`` optimizer steps of ``batch_layout.global_batch`` answers, repeated ``passes``
    times; each prompt has ``group`` answers.
    """

    batch_layout: BatchLayout
    group: int
    updates: int
    passes: int

    @property
    def answers(self) -> int:
        """Answers per rollout, over all ranks."""
        return self.updates * self.batch_layout.global_batch

    @property
    def groups(self) -> int:
        """Prompts per rollout."""
        return self.answers // self.group

    @property
    def steps(self) -> int:
        """Optimizer steps per rollout."""
        return self.updates * self.passes


class AnswerRows:
    """The rows of an epoch as training counts them: answers times passes.

    For counting epochs only (``CountedRows``).
    """

    def __init__(self, prompts: PackedSource, batch_layout: RolloutLayout, drop_last: bool) -> None:
        self.prompts, self.batch_layout, self.drop_last = prompts, batch_layout, drop_last

    def num_rows(self, epoch: int) -> int:
        """Return a multiple of the global batch: rollouts are whole, the last one is padded or dropped."""
        answers = self.prompts.num_rows(epoch) * self.batch_layout.group
        rollouts = (
            answers // self.batch_layout.answers
            if self.drop_last
            else -(-answers // self.batch_layout.answers)
        )
        return rollouts * self.batch_layout.answers * self.batch_layout.passes
