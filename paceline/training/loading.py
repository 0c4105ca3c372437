"""Batches loaded ahead: threads prepare what the next steps read while one runs, in the same order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import torch

from paceline.config.sections.training import TrainingSection

T = TypeVar("T")
AHEAD = 2  # what a thread keeps ready where the config says nothing, as torch's DataLoader


@dataclass(frozen=True)
class Loading:
    """``workers`` threads keep ``ahead`` items ready each (0: everything is made when it is asked for); with ``pin`` batches are
    page-locked for ``device``."""

    workers: int = 0
    ahead: int = AHEAD
    pin: bool = False
    device: torch.device = torch.device("cpu")

    @staticmethod
    def of(training: TrainingSection, device: torch.device) -> Loading:
        """What the config's ``training.dataloader_…`` keys ask for; there is nothing to page-lock for but on CUDA."""
        return Loading(
            training.dataloader_num_workers,
            training.dataloader_prefetch_factor or AHEAD,
            training.dataloader_pin_memory and device.type == "cuda",
            device,
        )

    def in_order(self, make: Callable[[int], T], items: range) -> Generator[T]:
        """``make(i)`` for each item in its order, some of them made ahead: ``make`` depends on nothing but ``i``.

        What ``make`` raises is raised where its item is due, after all before it. Close the generator and its threads end.
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
        """A thread page-locks for the process's own device, not for the first one of the machine."""
        if self.pin:
            torch.cuda.set_device(self.device)
