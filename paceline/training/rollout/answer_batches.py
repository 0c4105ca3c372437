"""Micro-batches of answers: prompt and answer as one document, with the sampled tokens as labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.prefixes import with_prefixes


@dataclass(frozen=True)
class Answer:
    """One answer, to be put into a micro-batch.

    is_scored  whether it has a score and counts in means over answers
    has_loss   whether its tokens are labelled
    """

    prompt_id: int
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    sampled: Tensor
    advantage: float
    is_scored: bool
    has_loss: bool


def answer_batch(answers: Sequence[Answer | None], pad_id: int, dtype: torch.dtype) -> Batch:
    """Return a flat micro-batch with the fields ``sampled`` and ``advantage`` and, per document,
    ``is_scored``.

    None makes a filler: two tokens of weight 0.
    """
    ids: list[int] = []
    labels: list[int] = []
    positions: list[int] = []
    ends = [0]
    sampled: list[Tensor] = []
    advantages: list[Tensor] = []
    for answer in answers:
        # Labels are shifted: position i is labelled with token i + 1, from the prompt's last token on
        row = [pad_id, pad_id] if answer is None else [*answer.prompt, *answer.tokens]
        nothing, first = len(row), len(row)
        if answer is not None and answer.has_loss:
            first = len(answer.prompt) - 1  # the last token of the prompt predicts the first of the answer
        count = max(0, nothing - 1 - first)
        ids += row
        labels += [IGNORE_INDEX] * min(first, nothing) + row[first + 1 :] + [IGNORE_INDEX] * (first < nothing)
        positions += range(nothing)
        ends.append(ends[-1] + nothing)
        # Token fields are 0 outside the labelled positions
        values = torch.zeros(nothing, dtype=dtype)
        advantage = torch.zeros(nothing, dtype=dtype)
        if answer is not None and count:
            values[first : first + count] = answer.sampled.to(dtype)
            advantage[first : first + count] = answer.advantage
        sampled.append(values)
        advantages.append(advantage)
    batch = Batch(
        input_ids=torch.tensor([ids], dtype=torch.int64),
        labels=torch.tensor([labels], dtype=torch.int64),
        position_ids=torch.tensor([positions], dtype=torch.int64),
        cu_seqlens=torch.tensor(ends, dtype=torch.int32),
        max_seqlen=max(b - a for a, b in zip(ends, ends[1:], strict=False)),
        document_ids=torch.tensor([-1 if a is None else a.prompt_id for a in answers], dtype=torch.int64),
        num_rows=sum(a is not None for a in answers),
        extras={
            "is_scored": torch.tensor(
                [int(a is not None and a.is_scored) for a in answers], dtype=torch.int64
            )
        },
        tokens={"sampled": torch.cat(sampled)[None], "advantage": torch.cat(advantages)[None]},
    )
    return with_prefixes(batch)
