"""Documents of a micro-batch that begin alike: both answers to one prompt, the answers of a group."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from paceline.protocols.batch import Batch

MIN_SHARED_TOKENS = 8  # tokens below which sharing a beginning saves nothing


def with_prefixes(batch: Batch) -> Batch:
    """``batch`` knowing what its documents have in common (``Batch.shared``): each is compared with the last one that stands for itself."""
    ids, bounds = batch.input_ids[0], batch.cu_seqlens.tolist()
    found: list[int] = []
    owner = 0
    for document, (start, end) in enumerate(zip(bounds, bounds[1:], strict=False)):
        first = slice(bounds[owner], bounds[owner + 1])
        common = common_prefix(ids[first], ids[start:end]) if document else 0
        found.append(common if common >= MIN_SHARED_TOKENS else 0)
        owner = owner if found[-1] else document
    return replace(batch, shared=tuple(found) if any(found) else ())


def common_prefix(one: Tensor, other: Tensor) -> int:
    """How many tokens both int64 [n], [m] begin with."""
    size = min(len(one), len(other))
    differ = (one[:size] != other[:size]).nonzero()
    return int(differ[0]) if len(differ) else size
