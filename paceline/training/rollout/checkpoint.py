"""A rollout in a checkpoint: a run that stops between two steps on the same answers resumes bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from paceline.protocols.batch import Batch
from paceline.protocols.prefixes import with_prefixes
from paceline.protocols.shard import Shard, ShardReader

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
        yield _whole(f"{first + i}.{_ROW}", rows[i])
        for name, parts in pieces.items():
            yield _whole(f"{first + i}.{name}", parts[i])


def _whole(name: str, tensor: Tensor) -> Shard:
    return Shard(ROLE, name, KIND, tuple(tensor.shape), (0,) * tensor.dim(), tensor.contiguous())


def read_batch(reader: ShardReader, first: int, count: int, fields: Sequence[str]) -> Batch:
    """Read the micro-batch of ``count`` answers from place ``first`` on, with the token fields ``fields``."""
    places = range(first, first + count)

    def read(name: str) -> list[Tensor]:
        return [reader.read(ROLE, f"{place}.{name}", KIND) for place in places]

    rows, ids = torch.stack(read(_ROW)), read("input_ids")
    sizes = [len(x) for x in ids]
    batch = Batch(
        input_ids=torch.cat(ids)[None],
        labels=torch.cat(read("labels"))[None],
        position_ids=torch.cat([torch.arange(n) for n in sizes])[None],
        cu_seqlens=torch.tensor([0, *sizes]).cumsum(0).to(torch.int32),
        max_seqlen=max(sizes),
        document_ids=rows[:, 0].clone(),
        num_rows=int((rows[:, 0] >= 0).sum()),
        extras={"is_scored": rows[:, 1].clone()},
        tokens={name: torch.cat(read(_TOKENS + name))[None] for name in fields},
    )
    return with_prefixes(batch)
