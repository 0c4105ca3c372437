"""Common prefixes of a micro-batch's documents: both answers to one prompt, the answers of a group."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from paceline.protocols.batch import Batch

MIN_SHARED_TOKENS = 8  # tokens; sharing a shorter prefix saves nothing


def with_prefixes(batch: Batch) -> Batch:
    """Return ``batch`` with ``Batch.shared`` set: each document is compared with the last one before it that
    shares no prefix.
    """
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
    """Return the length of the common prefix of two int64 [n], [m]."""
    size = min(len(one), len(other))
    differ = (one[:size] != other[:size]).nonzero()
    return int(differ[0]) if len(differ) else size
