"""Memory and CPU-time limits for untrusted code that runs in this process, such as a chat template."""

from __future__ import annotations

import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

CPU_SECONDS = 10.0  # per conversation; the slowest published template takes milliseconds
MEMORY_BYTES = 1 << 30  # on top of what the process has mapped on entry


class SpentError(BaseException):
    """The CPU time is used up.

    Not an ``Exception``: Jinja's compiler swallows those while it folds constants.
    """


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Raise MemoryError inside the block once the process maps MEMORY_BYTES more than on entry.

    Works through RLIMIT_AS on Linux; does nothing where ``/proc/self/statm`` cannot be read.
    """
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
    """Raise SpentError inside the block after CPU_SECONDS of this process's CPU time.

    Yields a function that restarts the timer. Has no effect outside the main thread, since only that one
    receives signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before = signal.signal(signal.SIGVTALRM, _ring)
    try:
        with _lost_in_silence():
            _start()
            yield _start
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def _lost_in_silence() -> Iterator[None]:
    """Report no SpentError that Python had to drop, inside a destructor: the next one follows."""
    before = sys.unraisablehook

    def report(dropped: sys.UnraisableHookArgs) -> None:
        if dropped.exc_type is not SpentError:
            before(dropped)

    sys.unraisablehook = report
    try:
        yield
    finally:
        sys.unraisablehook = before


def _start() -> None:
    # It repeats every 0.1 s: an exception raised inside a destructor is lost
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS, 0.1)


def _ring(number: int, frame: FrameType | None) -> None:
    raise SpentError
