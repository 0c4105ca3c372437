"""Micro-batches of answers: built from sampled tokens, saved in a checkpoint, restored from it.

A prompt and its answer are one document, with the sampled tokens as labels. A run that stops between two
steps on the same answers resumes bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.protocols.batch import IGNORE_INDEX, Batch, with_prefixes
from paceline.protocols.shard import Shard, ShardReader


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
        # first unlabelled, then the answer's tokens, then the last position, which predicts nothing.
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


ROLE = KIND = "rollout"  # one set of tensors per answer, named by its place: any rank can read its own
_ROW = "row"  # int64 [2]: the prompt's document, whether it is scored
_TOKENS = "tokens."


def batch_shards(batch: Batch, first: int) -> Iterator[Shard]:
    """Yield the answers of a micro-batch; ``first`` is the place of its first one in the rollout."""
    sizes = (batch.cu_seqlens[1:] - batch.cu_seqlens[:-1]).tolist()
    flat = {
        "input_ids": batch.input_ids,
        "labels": batch.labels,
        **{_TOKENS + n: v for n, v in batch.tokens.items()},
    }
    pieces = {name: torch.split(values[0], sizes) for name, values in flat.items()}
    rows = torch.stack([batch.document_ids, batch.extras["is_scored"]], 1)
    for i in range(len(sizes)):
        # One shard an answer: another number of ranks can then read just its own.
        yield _whole(f"{first + i}.{_ROW}", rows[i])
        for name, parts in pieces.items():
            yield _whole(f"{first + i}.{name}", parts[i])


def _whole(name: str, tensor: Tensor) -> Shard:
    return Shard(ROLE, name, KIND, tuple(tensor.shape), (0,) * tensor.dim(), tensor.contiguous())


def read_batch(reader: ShardReader, first: int, count: int, fields: Sequence[str]) -> Batch:
    """Read the micro-batch of ``count`` answers from index ``first`` on, with the token fields ``fields``."""
    places = range(first, first + count)

    def read(name: str) -> list[Tensor]:
        return [reader.read(ROLE, f"{index}.{name}", KIND) for index in places]

    rows, ids = torch.stack(read(_ROW)), read("input_ids")
    sizes = [len(x) for x in ids]
    batch = Batch(
        input_ids=torch.cat(ids)[None],
        labels=torch.cat(read("labels"))[None],
        # Not stored: they follow from the lengths.
        position_ids=torch.cat([torch.arange(n) for n in sizes])[None],
        cu_seqlens=torch.tensor([0, *sizes]).cumsum(0).to(torch.int32),
        max_seqlen=max(sizes),
        document_ids=rows[:, 0].clone(),
        num_rows=int((rows[:, 0] >= 0).sum()),
        extras={"is_scored": rows[:, 1].clone()},
        tokens={name: torch.cat(read(_TOKENS + name))[None] for name in fields},
    )
    return with_prefixes(batch)
