"""A reward model that scores answers, with the same number of forwards on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from paceline.core.errors import ConfigError
from paceline.generation.engine import Completion
from paceline.protocols.roles import Output, Role
from paceline.strategies.model_handle import Handles
from paceline.strategies.strategy import Runner
from paceline.training import codes
from paceline.training.input_checks.rollout_config import gives_no_number
from paceline.training.input_checks.teacher_tokens import other_tokens
from paceline.training.rollout.answer_batches import Answer, answer_batch

_WHERE = "training.rollout.rewards"


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


def check_reward_model(name: str, tokenizer: Path) -> None:
    """Raise ConfigError unless ``name`` has one output and the tokens of ``tokenizer``.

    ``name`` is a folder or a cached hub model.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        message = str(error).split("\n")[0]
        hint = "use the folder written by `paceline export` after algorithm: reward"
        if (Path(name) / "adapter_config.json").is_file():
            hint = "export it as a complete model: paceline export RUN --to FOLDER --merge"
        what = "the reward model cannot be loaded"
        raise ConfigError(codes.REWARDS_MODEL(what, _WHERE, f"{name}: {message}", hint)) from error
    if wrong := gives_no_number(name, config.architectures or (), config.num_labels):
        raise ConfigError(wrong)
    if found := other_tokens(name, tokenizer):
        what = "the reward model and the policy have different tokens, so it would read a different text"
        hint = "use a reward model trained from the same base model, with the same tokenizer"
        raise ConfigError(codes.REWARDS_TOKENIZER(what, _WHERE, found, hint))
