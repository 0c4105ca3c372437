"""Prefetching of batches: threads prepare the next steps' batches while one runs, in the same order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import torch

from paceline.config.sections.training import TrainingSection
from paceline.plan.hardware.device_kinds import kind_of

T = TypeVar("T")
AHEAD = 2  # items per thread unless configured, as in torch's DataLoader


@dataclass(frozen=True)
class Loading:
    """``workers`` threads prefetch ``ahead`` items each (0 workers: items are made on demand); with ``pin``
    batches are in pinned memory for ``device``.
    """

    workers: int = 0
    ahead: int = AHEAD
    pin: bool = False
    device: torch.device = torch.device("cpu")

    @staticmethod
    def of(training: TrainingSection, device: torch.device) -> Loading:
        """Read the config's ``training.dataloader_…`` keys; memory is pinned for devices that gain by it."""
        return Loading(
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
                waiting.extend(threads.submit(make, item) for item in islice(rest, self.workers * self.ahead))
                while waiting:
                    made = waiting.popleft().result()
                    waiting.extend(threads.submit(make, item) for item in islice(rest, 1))
                    yield made
            finally:
                for future in waiting:
                    future.cancel()

    def _enter(self) -> None:
        """Set the thread's device, so that memory is pinned for this process's device."""
        if self.pin:
            torch.accelerator.set_device_index(self.device.index or 0)
