"""Python's garbage collection between steps, in place of within a micro-batch.

A collection of all generations takes tens of milliseconds where Transformers is loaded, and a rank in which
it falls into a micro-batch lets all others wait. Most objects die by their reference count; only cycles wait.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

EVERY = 50  # steps
MANY = 50_000  # new objects that may lie in cycles: then earlier


class Garbage:
    """Collects between steps, at the same steps on every rank but where a rank has made many objects."""

    def between_steps(self, step: int) -> None:
        """Collect after every ``EVERY``-th step, and where ``MANY`` objects have been made that are alive."""
        if step % EVERY == 0 or gc.get_count()[0] > MANY:
            gc.collect()


@contextmanager
def collected_between_steps() -> Iterator[Garbage]:
    """Inside, Python collects by ``between_steps`` alone; what exists at the start is left out of it.

    Afterwards all is as it was before.
    """
    enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield Garbage()
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()
