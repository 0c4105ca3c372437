"""The windows of one rank, prefetched: rows of an epoch in an order computed from the step (contract 4).

The rows of the training data by name: ``file:row``.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from threading import Lock
from typing import Protocol, TypeVar

import torch

from paceline.algorithms.algorithm import Algorithm
from paceline.config.sections.training import TrainingSection
from paceline.core.json_types import JsonObject
from paceline.data.data_order import positions_for, step_positions, steps_per_epoch
from paceline.data.packed_source import PackedSource
from paceline.data.token_table import TokenTable
from paceline.plan.hardware.device_kinds import kind_of
from paceline.protocols.batch import MISMATCHED, Batch, RowSource
from paceline.protocols.shard import Shard
from paceline.protocols.window import Window
from paceline.strategies.model_handle import Handles
from paceline.strategies.strategy import Runner
from paceline.training.loop.train_state import TrainState

FILLER = -1


@dataclass(frozen=True)
class BatchLayout:
    """How the global batch of G = micro_batch × accumulation × dp_size rows is split over data-parallel
    ranks.

    ``dp_rank`` is this rank's coordinate.
    """

    micro_batch: int
    accumulation: int
    dp_rank: int
    dp_size: int

    @property
    def global_batch(self) -> int:
        return self.micro_batch * self.accumulation * self.dp_size

    def positions(self, step: int, micro_step: int, num_rows: int) -> list[int]:
        """Return this rank's positions in the epoch's order for a micro-step; FILLER beyond the end."""
        places = positions_for(
            step, micro_step, self.dp_rank, self.dp_size, self.micro_batch, self.accumulation
        )
        return [p if p < num_rows else FILLER for p in places]


class Epochs:
    """Maps global steps to epochs.

    With packing each epoch has its own number of rows, so the table is cumulative. ``count`` returns the
    number of steps of an epoch that is not in the table yet. It is called on demand, so that a run with a
    given number of steps starts at once, however many epochs these are.
    """

    def __init__(
        self, steps: Iterable[int], total_steps: int, count: Callable[[int], int] | None = None
    ) -> None:
        self.total_steps = total_steps
        self._count = count
        # bisect on cumulative counts: epochs of different lengths cost one logarithm a step.
        self._ends = list(accumulate(steps))  # cumulative steps at the end of each epoch
        self._lock = Lock()  # prefetching threads make windows

    def __repr__(self) -> str:
        return f"Epochs(steps done at the end of each known: {self._ends}, total_steps={self.total_steps})"

    def locate(self, step: int) -> tuple[int, int]:
        """Return (epoch, step within it) of the 0-based global ``step``."""
        with self._lock:
            # Packing an epoch takes time, so epochs are counted when a step first falls into them.
            while self._count is not None and step >= self._done():
                self._ends.append(self._done() + self._count(len(self._ends)))
            epoch = bisect_right(self._ends, step)
            if epoch == len(self._ends):
                raise IndexError("step beyond the last epoch")
            return epoch, step - (self._ends[epoch - 1] if epoch else 0)

    def _done(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _steps(self, epoch: int) -> int:
        return self._ends[epoch] - (self._ends[epoch - 1] if epoch else 0)

    def is_epoch_end(self, finished: int) -> bool:
        """Whether the ``finished``-th step (1-based) ended an epoch."""
        epoch, within = self.locate(finished - 1)
        return within + 1 == self._steps(epoch)

    def progress(self, finished: int) -> float:
        """Return the number of epochs after ``finished`` steps, as a fraction."""
        if finished == 0:
            return 0.0
        epoch, within = self.locate(finished - 1)
        return epoch + (within + 1) / self._steps(epoch)


class CountedRows(Protocol):
    """The number of rows in each epoch, for counting steps."""

    def num_rows(self, epoch: int) -> int: ...


def count_epochs(
    source: CountedRows, global_batch: int, num_train_epochs: float, max_steps: int, drop_last: bool
) -> Epochs:
    """Return the epochs of a run: ``max_steps`` > 0 overrides ``num_train_epochs`` (which may be fractional).

    If the first epoch cannot fill a step, there are no steps at all.
    """

    def count(epoch: int) -> int:
        return steps_per_epoch(source.num_rows(epoch), global_batch, drop_last=drop_last)

    first = count(0)
    if first == 0:
        return Epochs((), 0)
    if max_steps > 0:
        return Epochs((first,), max_steps, count)
    # less 1e-9: rounding of 0.3 * 10 must not add a step
    # A fraction of an epoch is rounded up to whole steps, as Transformers does.
    steps, total = [first], math.ceil(min(1.0, num_train_epochs) * first - 1e-9)
    for epoch in range(1, math.ceil(num_train_epochs)):
        steps.append(count(epoch))
        total += math.ceil(min(1.0, num_train_epochs - epoch) * steps[-1] - 1e-9)
    return Epochs(steps, total)


class WindowSource:
    """The windows of one rank from global step ``start`` on, prefetched as ``loading`` says.

    ``others`` names further rows that each micro-batch carries in ``Batch.others`` (empty: none).
    """

    def __init__(
        self,
        source: RowSource,
        layout: BatchLayout,
        epochs: Epochs,
        start: int,
        loading: Prefetcher | None = None,
        others: str = "",
    ) -> None:
        self._source, self._cut, self._epochs, self._start = source, layout, epochs, start
        self._loading, self._others = loading or Prefetcher(), others

    def __iter__(self) -> Generator[Window]:
        return self._loading.in_order(self.window, range(self._start, self._epochs.total_steps))

    def state(self) -> JsonObject:
        """Return an empty dict: rows follow from the step."""
        return {}

    def shards(self, step: int) -> Iterator[Shard]:
        """Yield nothing: rows are read again."""
        yield from ()

    def starting(self, step: int) -> WindowSource:
        """Return the same windows from the 0-based ``step`` on."""
        return WindowSource(self._source, self._cut, self._epochs, step, self._loading, self._others)

    def documents(self, step: int) -> list[int]:
        """Return the documents of all ranks in the 0-based ``step``, without fillers."""
        epoch, within = self._epochs.locate(step)
        together = step_positions(within, self._cut.global_batch, self._source.num_rows(epoch))
        return self._source.document_ids(epoch, list(together))

    def filler(self) -> Batch:
        """Return a micro-batch of weight 0."""
        return self._source.batch(0, [FILLER])

    def window(self, step: int) -> Window:
        """Return the window of the 0-based global ``step``; it depends on no other step."""
        epoch, within = self._epochs.locate(step)
        num_rows = self._source.num_rows(epoch)
        layout = self._cut
        # The rows of all ranks, from the step alone: a resume on another number of ranks reads the same
        # ones.
        together = step_positions(within, layout.global_batch, num_rows)
        places = [layout.positions(within, j, num_rows) for j in range(layout.accumulation)]
        batches = [read_batch(self._source, epoch, positions, together, self._others) for positions in places]
        if self._loading.pin:
            batches = [batch.pinned() for batch in batches]
        return Window(step, epoch, batches, sample_digest(self._source.document_ids(epoch, list(together))))


def read_batch(source: RowSource, epoch: int, positions: list[int], together: range, others: str) -> Batch:
    """Return the micro-batch of the rows at ``positions``.

    If ``others`` is MISMATCHED, it carries a second batch: each prompt with the answer of another row in
    ``together``, the positions of the whole step.
    """
    batch = source.batch(epoch, positions)
    if others != MISMATCHED:
        return batch
    return replace(batch, others={MISMATCHED: source.mismatched(epoch, positions, together)})


def sample_digest(document_ids: list[int]) -> str:
    """Hash the document ids that all ranks read in a step; independent of the number of ranks."""
    # int64 ids, 8 bytes of digest: enough to compare two runs step by step in their logs.
    return hashlib.blake2b(array("q", document_ids).tobytes(), digest_size=8).hexdigest()


T = TypeVar("T")
AHEAD = 2  # items per thread unless configured, as in torch's DataLoader


@dataclass(frozen=True)
class Prefetcher:
    """``workers`` threads prefetch ``ahead`` items each (without workers items are made on demand); with
    ``pin`` batches are in pinned memory for ``device``.
    """

    workers: int = 0
    ahead: int = AHEAD
    pin: bool = False
    device: torch.device = torch.device("cpu")

    @staticmethod
    def of(training: TrainingSection, device: torch.device) -> Prefetcher:
        """Read the config's ``training.dataloader_…`` keys; memory is pinned for devices that gain by it."""
        return Prefetcher(
            training.dataloader_num_workers,
            training.dataloader_prefetch_factor or AHEAD,
            training.dataloader_pin_memory and kind_of(device.type).pins,
            device,
        )

    def in_order(self, make: Callable[[int], T], items: range) -> Generator[T]:
        """Yield ``make(i)`` for each item in order, prefetching some; ``make`` must depend only on ``i``.

        An exception of ``make`` is raised at its item's turn, after all items before it. Closing the
        generator ends its threads.
        """
        if not self.workers:
            yield from map(make, items)
            return
        rest = iter(items)
        waiting: deque[Future[T]] = deque()
        with ThreadPoolExecutor(self.workers, "paceline-loading", self._enter) as threads:
            try:
                # The queue is bounded: memory holds workers × ahead windows, however fast they are made.
                waiting.extend(threads.submit(make, item) for item in islice(rest, self.workers * self.ahead))
                while waiting:
                    item_value = waiting.popleft().result()
                    # One in for one out, before the yield: loading goes on while the step runs.
                    waiting.extend(threads.submit(make, item) for item in islice(rest, 1))
                    yield item_value
            finally:
                for future in waiting:
                    # Those that run are waited for by the pool; those that have not begun never do.
                    future.cancel()

    def _enter(self) -> None:
        """Set the thread's device, so that memory is pinned for this process's device."""
        if self.pin:
            torch.accelerator.set_device_index(self.device.index or 0)


Evaluation = Callable[[PackedSource], dict[str, float]]  # of rows or prompts


class Windows(Protocol):
    """The windows of a run from a step on: from rows (``training.windows``) or rollouts
    (``training.rollout.rollout_windows``).
    """

    def __iter__(self) -> Iterator[Window]: ...

    def filler(self) -> Batch:
        """Return a micro-batch of weight 0 with every field of a real one."""
        ...

    def state(self) -> JsonObject:
        """Return what a checkpoint must hold beyond the position, JSON."""
        ...

    def shards(self, step: int) -> Iterator[Shard]:
        """Return the tensors that a checkpoint after ``step`` steps must hold beyond the position."""
        ...


@dataclass(frozen=True)
class RunComponents:
    """The parts of a trainer: ``handles`` by role, ``state`` at the step to resume from, ``evaluate`` for a
    source of rows (or prompts).
    """

    runner: Runner
    algorithm: Algorithm
    handles: Handles
    windows: Windows
    epochs: Epochs
    state: TrainState
    evaluate: Evaluation


@dataclass(frozen=True)
class RowNames:
    """``paths``: the data sets of ``table`` in the config's words. Rows count from 1 in their data set."""

    table: TokenTable
    paths: Sequence[str]

    def of(self, documents: Iterable[int]) -> list[str]:
        """Return the row of each document, each once and in order; fillers have none."""
        table = self.table
        # Fillers have the id -1.
        places = ((int(table.dataset[i]), int(table.source_row[i])) for i in documents if i >= 0)
        return [f"{self._path(data_set)}:{row + 1}" for data_set, row in dict.fromkeys(places)]

    def _path(self, data_set: int) -> str:
        return self.paths[data_set] if data_set < len(self.paths) else f"data set {data_set + 1}"
