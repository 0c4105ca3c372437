"""A reward model that scores answers, with the same number of forwards on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paceline.generation.engine import Completion
from paceline.protocols.roles import Output, Role
from paceline.strategies.model_handle import Handles
from paceline.strategies.strategy import Runner
from paceline.training.rollout.answer_batches import Answer, answer_batch


@dataclass
class RewardModel:
    """Scores of ``Role.REWARD``: prompt and answer as one document, scored at the last token.

    ``closing``: the tokens that close an answer in the rows that a reward model is trained on: the stop
    token, and what the template writes after it; ``longest``: the most tokens of a document.
    """

    runner: Runner
    handles: Handles
    rows: int
    pad_id: int
    dtype: torch.dtype
    closing: tuple[int, ...]
    longest: int

    def document(self, prompt: Sequence[int], completion: Completion) -> tuple[int, ...]:
        """Return the tokens to score: prompt and answer, closed as training closes a row.

        TRL's GRPOTrainer renders the conversation with the answer, too. What does not fit is left out, as
        training cuts its rows.
        """
        closing = self.closing[1:] if completion.ended else self.closing
        return (*prompt, *completion.tokens, *closing)[
            : max(self.longest, len(prompt) + len(completion.tokens))
        ]

    def __call__(self, documents: Sequence[tuple[int, ...] | None], batches: int) -> list[float]:
        """Return a score per document (None: a filler, with score 0), in ``batches`` forwards of ``rows``.

        Collective. ``batches`` is the same on every rank.
        """
        found: list[float] = []
        nothing = torch.zeros(0, dtype=self.dtype)
        for start in range(0, batches * self.rows, self.rows):
            part = list(documents[start : start + self.rows])
            rows = [None if ids is None else Answer(0, ids, (), nothing, 0.0, True, False) for ids in part]
            batch = self.runner.strategy.shard_batch(
                answer_batch([*rows, *[None] * (self.rows - len(rows))], self.pad_id, self.dtype)
            )
            out = self.runner.forward_no_grad(self.handles, Role.REWARD, batch, frozenset({Output.SCORES}))
            scores = out[Output.SCORES.value].cpu().double().tolist()
            found += [0.0 if ids is None else score for ids, score in zip(part, scores, strict=False)]
        return found
