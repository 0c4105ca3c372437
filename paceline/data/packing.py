"""Packing: assign documents to rows. A pure function of lengths and order.

No padding, splitting or dropping.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import DataError
from paceline.data import codes

PACK_ALGORITHM = "best-fit-decreasing-by-length/1"

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Bins:
    """Rows as index lists: bin b is ``items[offsets[b]:offsets[b + 1]]`` (int64, indices of lengths)."""

    items: I64
    offsets: I64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def bin(self, index: int) -> I64:
        """Return int64 [k]: the items of one bin."""
        return self.items[self.offsets[index] : self.offsets[index + 1]]


def best_fit_decreasing(lengths: NDArray[np.int32], seq_len: int, order: I64 | None = None) -> Bins:
    """Pack into bins of at most ``seq_len`` tokens by best-fit decreasing (Johnson 1973).

    Documents of equal length are interchangeable, so all of one length are placed at once: a million
    documents take well under a second. ``order`` (a permutation) sorts documents of equal length.
    Raises DataError if a document does not fit.
    """
    num = len(lengths)
    if num == 0:
        return Bins(np.empty(0, np.int64), np.zeros(1, np.int64))
    longest = int(lengths.max())
    if longest > seq_len:
        where = f"document {int(lengths.argmax())}"
        raise DataError(codes.DATA_DOCUMENT_TOO_LONG(where, f"{longest} tokens", seq_len=seq_len))
    order = np.arange(num, dtype=np.int64) if order is None else order
    # Stable, so that documents of one length keep the order that was asked for
    by_length = order[np.argsort(-lengths[order], kind="stable")]
    bin_of, num_bins = _place(lengths[by_length], seq_len)
    within = np.argsort(bin_of, kind="stable")
    offsets = np.zeros(num_bins + 1, np.int64)
    np.cumsum(np.bincount(bin_of, minlength=num_bins), out=offsets[1:])
    return Bins(by_length[within], offsets)


def _place(descending: NDArray[np.int32], seq_len: int) -> tuple[I64, int]:
    """Return the bin of each document, for lengths in descending order, and the number of bins."""
    bin_of = np.empty(len(descending), np.int64)
    # At most ``seq_len`` keys, however many bins there are.
    room: dict[int, list[I64]] = {}  # free tokens -> stacks of bins with that much room
    # Negated, so that unique's ascending order is the longest first.
    values, starts = np.unique(-descending, return_index=True)
    ends = np.append(starts[1:], len(descending))
    num_bins = 0
    for value, first, last in zip((-values).tolist(), starts.tolist(), ends.tolist(), strict=True):
        # An empty document takes a place as one token, as a bin would otherwise hold any number of them.
        length = max(int(value), 1)
        while first < last:
            # Best fit: the bins with the least room that is enough, or new bins.
            free = min((r for r in room if r >= length), default=0)
            per_bin = (free or seq_len) // length
            wanted = -(-(last - first) // per_bin)
            if free:
                bins = _take(room, free, wanted)
            else:
                free, bins = seq_len, np.arange(num_bins, num_bins + wanted, dtype=np.int64)
                num_bins += wanted
            # Fill them with as many documents of this length as fit; the last bin may stay partly filled.
            packed = min(last - first, len(bins) * per_bin)
            # Neighbours in the order share a bin.
            bin_of[first : first + packed] = np.repeat(bins, per_bin)[:packed]
            full, rest = divmod(packed, per_bin)
            _put(room, free - per_bin * length, bins[:full])
            # The partly filled bin, if there is one.
            _put(room, free - rest * length, bins[full : full + 1])
            first += packed
    return bin_of, num_bins


def _take(room: dict[int, list[I64]], free: int, wanted: int) -> I64:
    """Take up to ``wanted`` bins from those with ``free`` tokens of room."""
    stack = room[free]
    bins = stack.pop()
    if len(bins) > wanted:
        stack.append(bins[wanted:])
        bins = bins[:wanted]
    if not stack:
        del room[free]
    return bins


def _put(room: dict[int, list[I64]], free: int, bins: I64) -> None:
    # A full bin is never looked at again
    if len(bins) and free > 0:
        room.setdefault(free, []).append(bins)


def efficiency(bins: Bins, lengths: NDArray[np.int32], seq_len: int) -> float:
    """Return tokens divided by the capacity of all rows, 0 to 1."""
    return float(lengths[bins.items].sum(dtype=np.int64)) / (len(bins) * seq_len) if len(bins) else 1.0
