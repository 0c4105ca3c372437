"""A tracker in a thread of its own: it is made, fed and closed there, whatever its server does."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from paceline.training.trackers.tracker import Tracker

T = TypeVar("T")
MOST_WAITING = 1000  # points that wait for a tracker; further ones are dropped


class TrackerThread:
    """Hands points to one tracker. Nothing here waits, but for ``join``."""

    def __init__(self, name: str, make: Callable[[], Tracker], capacity: int = MOST_WAITING) -> None:
        self.name = name
        self.error: BaseException | None = None
        self.dropped = 0  # points that found no room
        self.skipped = 0  # points that waited until there was no time left
        self._make, self._capacity = make, capacity
        self._waiting: deque[tuple[int, Mapping[str, float]]] = deque()
        self._changed = threading.Condition()
        self._ends: float | None = None  # monotonic time at which points stop being sent; None: no end yet
        self._calls_since: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def give(self, step: int, values: Mapping[str, float]) -> None:
        """Queue a point, or count it as dropped."""
        if self.error is not None:
            return
        with self._changed:
            if len(self._waiting) >= self._capacity:
                self.dropped += 1
                return
            self._waiting.append((step, values))
            self._changed.notify()

    def waits_seconds(self) -> float:
        """How long the call in progress has taken; 0 if there is none."""
        since = self._calls_since
        return 0.0 if since is None else time.monotonic() - since

    def end(self, seconds: float) -> None:
        """Let it send for ``seconds`` what waits, then close the tracker."""
        with self._changed:
            self._ends = time.monotonic() + seconds
            self._changed.notify()

    def join(self, until: float) -> None:
        """Wait for the thread, until the monotonic time ``until`` at most."""
        self._thread.join(max(0.0, until - time.monotonic()))

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def unsent(self) -> int:
        """Points that the tracker has not got: dropped, skipped at the end, or still waiting."""
        return self.dropped + self.skipped + len(self._waiting)

    def _run(self) -> None:
        try:
            tracker = self._timed(self._make)
            while (point := self._next()) is not None:
                step, values = point
                self._timed(partial(tracker.log, step, values))
            self._timed(tracker.close)
        except BaseException as error:  # noqa: BLE001 - a package may raise anything, SystemExit too
            self.error = error
            with self._changed:
                self._waiting.clear()

    def _timed(self, call: Callable[[], T]) -> T:
        self._calls_since = time.monotonic()
        try:
            return call()
        finally:
            self._calls_since = None

    def _next(self) -> tuple[int, Mapping[str, float]] | None:
        """Wait for a point; None when all has been sent after ``end``, or its time is over."""
        with self._changed:
            while not self._waiting and self._ends is None:
                self._changed.wait()
            if self._ends is not None and time.monotonic() > self._ends:
                self.skipped += len(self._waiting)
                self._waiting.clear()
            return self._waiting.popleft() if self._waiting else None
