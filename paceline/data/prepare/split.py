"""The validation split, by seed and without leakage: rows with the same prompt stay on one side."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import DataError
from paceline.data import codes
from paceline.data.random_keys import hash_values, stream_key

I64 = NDArray[np.int64]


def split_rows(keys: NDArray[np.uint64], wanted: float | int, seed: int) -> tuple[I64, I64]:
    """Return (train, held out): ascending row indices that together cover every row once.

    ``keys`` uint64 [n]: hashes of the prompts; ``wanted``: a fraction below 1, or a number of rows. Groups of
    equal prompts are held out in the order of their hash with the seed, as long as they fit; so the split
    depends on the rows, not on their order. Raises DataError if one side would be empty.
    """
    num = len(keys)
    target = max(1, round(wanted * num)) if wanted < 1 else int(wanted)
    unique, group_of, sizes = np.unique(keys, return_inverse=True, return_counts=True)
    if len(unique) < 2 or target >= num:
        what = (
            "the rows cannot be split, because all have the same prompt"
            if len(unique) < 2
            else "the validation split would leave no training data"
        )
        raise DataError(
            codes.DATA_CANNOT_SPLIT(
                what,
                "data.validation_split",
                f"{target} of {num} rows, {len(unique)} different prompt{'s' if len(unique) != 1 else ''}",
                "set a smaller validation_split, give more rows, or set data.eval",
            )
        )
    # Hold out whole groups in hashed order while they fit.
    order = np.argsort(hash_values(stream_key(seed, "split"), unique), kind="stable")
    held = np.zeros(len(unique), np.bool_)
    count = 0
    for group in order.tolist():
        size = int(sizes[group])
        if count + size <= target:
            held[group] = True
            count += size
        if count == target:
            break
    if count == 0:  # every group is larger than the target
        held[int(np.argmin(sizes))] = True
    out = held[group_of]
    return np.flatnonzero(~out), np.flatnonzero(out)


def overlap(train_keys: NDArray[np.uint64], eval_keys: NDArray[np.uint64]) -> int:
    """Return how many evaluation rows have a prompt that is also trained on."""
    return int(np.isin(eval_keys, train_keys).sum())
