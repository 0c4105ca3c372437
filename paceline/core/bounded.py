"""Limits for a program that somebody else wrote and this process runs (a chat template): memory by the kernel, time by a clock of CPU seconds."""

from __future__ import annotations

import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

CPU_SECONDS = 10.0  # of one conversation; the slowest of the published templates takes milliseconds
MEMORY_BYTES = 1 << 30  # beyond what the process holds when it begins


class SpentError(BaseException):
    """The clock ran out. No Exception: Jinja's compiler passes over those while it works out constants."""


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Allocations beyond MEMORY_BYTES more than now raise MemoryError inside (where the system tells what is held: Linux)."""
    try:
        held = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = [limit for limit in (soft, hard, held + MEMORY_BYTES) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def bounded_time() -> Iterator[Callable[[], None]]:
    """SpentError inside after CPU_SECONDS of this process's own work (in its main thread; signals reach no other). What it gives starts the clock anew."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before = signal.signal(signal.SIGVTALRM, _ring)
    try:
        _start()
        yield _start
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _start() -> None:
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS, 0.1)  # again and again: one ring can be lost in a destructor


def _ring(number: int, frame: FrameType | None) -> None:
    raise SpentError
