"""A time limit for calls of other people's functions."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Overdue(Exception):
    """The time limit is exceeded."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise Overdue inside the block after ``seconds``: in Python code, waits and regular expressions, but
    not inside a library's own C loops.

    Uses SIGALRM, so that endless loops are interrupted too; outside the main thread there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise Overdue(f"did not answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
