"""How long this process waits for the others, on its host: in collectives, sends and receives."""

from __future__ import annotations

import contextlib
import datetime
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from torch import Tensor
from torch._C import _distributed_c10d
from torch.autograd.variable import Variable
from torch.utils.hooks import RemovableHandle


class Waited(Protocol):
    """A collective, send or receive under way, as c10d returns it."""

    def wait(self, timeout: datetime.timedelta = ...) -> bool: ...


class Hookable(Protocol):
    """A tensor, whose own method has no types."""

    def register_hook(self, hook: Callable[[Tensor], None]) -> RemovableHandle: ...


_HANDLE: type[Waited] = vars(_distributed_c10d)["Work"]


class WaitClock:
    """``seconds`` so far, of the main thread. On an accelerator the host only enqueues collectives and does
    not wait: there it counts next to nothing.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Inside the context every ``wait`` of c10d is timed: torch's own calls of collectives end in it."""
        plain, main = _HANDLE.wait, threading.main_thread().ident

        def timed(handle: Waited, *args: datetime.timedelta) -> bool:
            begun = time.perf_counter()
            try:
                return bool(plain(handle, *args))
            finally:
                # Waits of background threads delay nobody.
                if threading.get_ident() == main:
                    self.seconds += time.perf_counter() - begun

        setattr(_HANDLE, "wait", timed)  # noqa: B010
        try:
            yield
        finally:
            setattr(_HANDLE, "wait", plain)  # noqa: B010

    @contextlib.contextmanager
    def after_graph(self, loss: Tensor) -> Iterator[None]:
        """Count what the backward of ``loss`` inside the context waits once its own graph has run: DDP's
        reducer waits there, outside of Python.
        """
        ended: list[float] = []

        def begin(gradient: Tensor) -> None:
            # It runs when the graph is done. DDP waits for its buckets in a callback of its own, queued
            # later: the time between is the wait.
            Variable._execution_engine.queue_callback(lambda: ended.append(time.perf_counter()))

        root: Hookable = loss  # the graph, and the hook with it, ends with its backward
        root.register_hook(begin)
        try:
            yield
        finally:
            if ended:
                self.seconds += time.perf_counter() - ended[0]
