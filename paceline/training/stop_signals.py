"""Signal handling: SIGTERM, SIGHUP (a closed terminal) or Ctrl-C requests a stop after the current step; a
second Ctrl-C exits.
"""

from __future__ import annotations

import os
import select
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
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup's stays ignored
            numbers.append(signal.SIGHUP)
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._woke = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._arrived = select.poll()
        self._arrived.register(self._pipe[0], select.POLLIN)
        self._previous = {number: signal.signal(number, self._on_signal) for number in numbers}

    def requested(self) -> bool:
        return self.since is not None

    def came(self) -> bool:
        """Whether a signal has arrived, also one that the main thread, busy in C, has not handled."""
        return self.requested() or bool(self._arrived.poll(0))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.since is None:
            self.since = time.monotonic()
        if number == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts >= 2:
                # whatever the main thread hangs in
                os._exit(ExitCode.INTERRUPTED)

    def restore(self) -> None:
        """Restore the previous handlers."""
        signal.set_wakeup_fd(self._woke)
        for end in self._pipe:
            os.close(end)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
