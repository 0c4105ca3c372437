"""Memory and CPU-time limits for untrusted code that runs in this process, such as a chat template."""

from __future__ import annotations

import hashlib
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import ClassVar

CPU_SECONDS = 10.0  # of a program in this process, beyond what its work is worth
BLOCK_SECONDS = 0.25  # what a block is worth: large templates are compiled in 0.1 s
MEMORY_BYTES = 1 << 30  # on top of what the process has mapped on entry


class SpentError(BaseException):
    """The CPU time is used up.

    Not an ``Exception``: Jinja's compiler swallows those while it folds constants.
    """


def limit_of(error: SpentError | MemoryError) -> str:
    """Return the limit that a program exceeded, as text."""
    if isinstance(error, SpentError):
        return f"it took more than {CPU_SECONDS:g} s of CPU time"
    return f"it took more than {MEMORY_BYTES >> 20} MiB"


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
    # The hard limit stays: it could not be raised again
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = [limit for limit in (soft, hard, held + MEMORY_BYTES) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def bounded_time(programs: Iterable[str]) -> Iterator[None]:
    """Raise SpentError inside the block once ``programs`` (their texts) have used up their CPU time.

    All blocks of this process share CPU_SECONDS, so a costly program ends at once in the next block. Each
    block returns BLOCK_SECONDS to the account, and ``grant`` the time of one execution. Has no effect outside
    the main thread, since only that one receives signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    account = _Account(programs)
    before = signal.signal(signal.SIGVTALRM, _ring)
    try:
        with _lost_in_silence():
            _Account.open = account
            account.start(BLOCK_SECONDS)
            yield
    finally:
        _Account.open = None
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        account.charge()
        signal.signal(signal.SIGVTALRM, before)


def grant(seconds: float) -> None:
    """Add the CPU time of one execution to the account of the surrounding block's programs.

    Raises SpentError.
    """
    account = _Account.open
    if account is not None and threading.current_thread() is threading.main_thread():
        if account.charge() < 0:  # the clock counts in ticks, and may ring too late
            raise SpentError
        account.start(seconds)


class _Account:
    """The CPU time of one set of programs. ``open``: that of the block in which the main thread is."""

    spent: ClassVar[dict[str, float]] = {}
    open: ClassVar[_Account | None] = None

    def __init__(self, programs: Iterable[str]) -> None:
        self._key = hashlib.sha256("\0".join(sorted(programs)).encode("utf-8", "surrogatepass")).hexdigest()
        self._since = time.thread_time()

    def charge(self) -> float:
        """Add the CPU time since the clock was set; return what is left."""
        spent = self.spent.get(self._key, 0.0) + time.thread_time() - self._since
        self.spent[self._key] = min(spent, CPU_SECONDS)
        return CPU_SECONDS - spent

    def start(self, worth: float) -> None:
        """Add ``worth`` seconds, and set the clock to the time left."""
        self.spent[self._key] = spent = max(0.0, self.spent.get(self._key, 0.0) - worth)
        self._since = time.thread_time()
        # It repeats every 0.1 s: an exception raised inside a destructor is lost
        signal.setitimer(signal.ITIMER_VIRTUAL, max(CPU_SECONDS - spent, 0.001), 0.1)


@contextmanager
def _lost_in_silence() -> Iterator[None]:
    """Hide SpentErrors that Python drops in a destructor, since the next one follows."""
    before = sys.unraisablehook

    def report(dropped: sys.UnraisableHookArgs) -> None:
        if dropped.exc_type is not SpentError:
            before(dropped)

    sys.unraisablehook = report
    try:
        yield
    finally:
        sys.unraisablehook = before


def _ring(number: int, frame: FrameType | None) -> None:
    raise SpentError
