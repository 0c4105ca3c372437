"""Signal handling: SIGTERM or Ctrl-C requests a stop after the current step; a second Ctrl-C exits."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

from paceline.core.errors import ExitCode


class StopSignals:
    """Installs the handlers; ``requested()`` is read between steps. ``since``: when the first signal came, by
    ``time.monotonic``; None before.
    """

    def __init__(self) -> None:
        self.since: float | None = None
        self._interrupts = 0
        self._previous = {s: signal.signal(s, self._on_signal) for s in (signal.SIGTERM, signal.SIGINT)}

    def requested(self) -> bool:
        return self.since is not None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.since is None:
            self.since = time.monotonic()
        if number == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts >= 2:
                os._exit(ExitCode.INTERRUPTED)

    def restore(self) -> None:
        """Restore the previous handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
