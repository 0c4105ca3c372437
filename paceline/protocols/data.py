"""The interface between training and data: a source of rows in a computable order."""

from __future__ import annotations

from typing import Protocol

from paceline.protocols.batch import Batch


class RowSource(Protocol):
    """An ordered set of rows (bins when packed), addressable by position (contract 4).

    ``num_rows(epoch)`` rows; ``batch(epoch, positions)`` builds the micro-batch of the rows at those
    positions of the epoch's order; a position of -1 or beyond the end gives a filler. Stateless: the position
    in training is two integers, epoch and position.
    """

    def num_rows(self, epoch: int) -> int: ...

    def batch(self, epoch: int, positions: list[int]) -> Batch: ...

    def mismatched(self, epoch: int, positions: list[int], among: range) -> Batch:
        """Return the same rows with each prompt's answer replaced by that of the previous document among the
        rows at ``among`` (the last one's for the first).
        """
        ...

    def document_ids(self, epoch: int, positions: list[int]) -> list[int]: ...
