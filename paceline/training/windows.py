"""From rows in an arithmetic order to the windows of one rank (contract 4)."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from paceline.data.order import positions_for, step_positions, steps_per_epoch
from paceline.seam.batch import Batch
from paceline.seam.data import RowSource
from paceline.seam.shard import Shard
from paceline.seam.window import Window
from paceline.training.loading import Loading

FILLER = -1


@dataclass(frozen=True)
class Cut:
    """How the global batch of G = micro_batch × accumulation × dp_size rows is cut: this rank is coordinate ``dp_rank``."""

    micro_batch: int
    accumulation: int
    dp_rank: int
    dp_size: int

    @property
    def global_batch(self) -> int:
        return self.micro_batch * self.accumulation * self.dp_size

    def positions(self, step: int, micro_step: int, num_rows: int) -> list[int]:
        """This rank's positions of the epoch's order in that micro-step; FILLER beyond the end."""
        own = positions_for(step, micro_step, self.dp_rank, self.dp_size, self.micro_batch, self.accumulation)
        return [p if p < num_rows else FILLER for p in own]


@dataclass(frozen=True)
class Epochs:
    """Where each global step lies. Packing gives every epoch its own number of rows, so the table is cumulative."""

    steps: tuple[int, ...]  # optimizer steps of each epoch
    total_steps: int

    def locate(self, step: int) -> tuple[int, int]:
        """(epoch, step within it) of 0-based global ``step``."""
        for epoch, count in enumerate(self.steps):
            if step < count:
                return epoch, step
            step -= count
        raise IndexError("step beyond the last epoch")

    def is_epoch_end(self, finished: int) -> bool:
        """Whether the ``finished``-th step (1-based) closed an epoch."""
        epoch, within = self.locate(finished - 1)
        return within + 1 == self.steps[epoch]

    def progress(self, finished: int) -> float:
        """Epochs done after ``finished`` steps, as a fraction."""
        if finished == 0:
            return 0.0
        epoch, within = self.locate(finished - 1)
        return epoch + (within + 1) / self.steps[epoch]


def count_epochs(
    source: RowSource, global_batch: int, num_train_epochs: float, max_steps: int, drop_last: bool
) -> Epochs:
    """The epochs that a run walks through: ``max_steps`` > 0 wins over ``num_train_epochs`` (which may be fractional)."""
    steps: list[int] = []
    total = 0
    while True:
        epoch = len(steps)
        rows = source.num_rows(epoch)
        count = steps_per_epoch(rows, global_batch, drop_last=drop_last)
        if count == 0:
            return Epochs((), 0)
        if max_steps > 0:
            steps.append(count)
            total = min(max_steps, total + count)
            if total == max_steps:
                return Epochs(tuple(steps), total)
            continue
        left = num_train_epochs - epoch
        steps.append(count)
        total += math.ceil(min(1.0, left) * count - 1e-9)
        if left <= 1.0:
            return Epochs(tuple(steps), total)


class WindowSource:
    """The windows of one rank from global step ``start`` on, loaded ahead as ``loading`` says."""

    def __init__(self, source: RowSource, cut: Cut, epochs: Epochs, start: int, loading: Loading | None = None) -> None:
        self._source, self._cut, self._epochs, self._start = source, cut, epochs, start
        self._loading = loading or Loading()

    def __iter__(self) -> Iterator[Window]:
        return self._loading.in_order(self.window, range(self._start, self._epochs.total_steps))

    def shards(self, step: int) -> Iterator[Shard]:
        """Nothing to keep beside the position: rows are read again."""
        yield from ()

    def filler(self) -> Batch:
        """A micro-batch that weighs nothing."""
        return self._source.batch(0, [FILLER])

    def window(self, step: int) -> Window:
        """The window of 0-based global ``step``: reads nothing of any other step."""
        epoch, within = self._epochs.locate(step)
        num_rows = self._source.num_rows(epoch)
        cut = self._cut
        batches = [self._source.batch(epoch, cut.positions(within, j, num_rows)) for j in range(cut.accumulation)]
        if self._loading.pin:
            batches = [batch.pinned() for batch in batches]
        everyone = [p for p in step_positions(within, cut.global_batch) if p < num_rows]
        return Window(step, epoch, batches, sample_digest(self._source.document_ids(epoch, everyone)))


def sample_digest(document_ids: list[int]) -> str:
    """Hash of the ids that the ranks see together in a step, independent of how many ranks there are."""
    return hashlib.blake2b(array("q", document_ids).tobytes(), digest_size=8).hexdigest()
