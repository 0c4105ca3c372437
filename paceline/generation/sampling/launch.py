"""Launch the kernels on a device: how many programs, and blocks of which size."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 1024  # columns at a time, where thresholds are counted: 16 of them beside each other
COLUMNS = 2048  # columns at a time, where scores are computed
PROGRAMS = 512  # at least so many, where rows are few: each takes a part of a row
PARTS = 32  # of a row, at most


def nucleus(logits: Tensor, top_k: int, top_p: float, temperature: float) -> Tensor:
    """See ``reference.nucleus``. One kernel."""
    from paceline.generation.sampling import triton_source

    logits = logits.contiguous()
    rows, words = logits.shape
    bounds = logits.new_empty(rows, 2, dtype=torch.int64)
    # One program a row: thresholds need all of it
    triton_source.nucleus[(rows,)](logits, bounds, words, top_k, top_p, temperature, BLOCK=BLOCK, num_warps=8)
    return bounds


def draw(
    logits: Tensor, bounds: Tensor | None, streams: Tensor, places: Tensor, temperature: float, sampled: bool
) -> tuple[Tensor, Tensor]:
    """See ``reference.draw``. Two kernels."""
    from paceline.generation.sampling import triton_source

    logits, streams = logits.contiguous(), streams.contiguous()
    rows, words = logits.shape
    # columns of a part, a multiple of ``COLUMNS``, and parts of a row
    part = -(-words // (max(1, min(PARTS, -(-PROGRAMS // rows))) * COLUMNS)) * COLUMNS
    parts = -(-words // part)
    # One number a part of each row; ``join`` makes rows of them.
    scores, highest, sums = (logits.new_empty(rows, parts, dtype=torch.float32) for _ in range(3))
    columns = logits.new_empty(rows, parts, dtype=torch.int32)
    tokens, logprobs = streams.new_empty(rows), logits.new_empty(rows, dtype=torch.float32)
    triton_source.draw[(rows, parts)](
        logits, streams if bounds is None else bounds, streams, places, scores, columns, highest, sums,
        words, part, places.stride(0), temperature, SAMPLED=sampled, BOUNDED=bounds is not None,
        BLOCK=COLUMNS, num_warps=8,
    )  # fmt: skip
    triton_source.join[(rows,)](
        logits, scores, columns, highest, sums, tokens, logprobs, words, parts, temperature,
        PARTS=PARTS, num_warps=1,
    )  # fmt: skip
    return tokens, logprobs
