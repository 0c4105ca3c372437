"""The interface of an object store, and its errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Protocol, TypeVar

from paceline.core.errors import CheckpointError

T = TypeVar("T")
_TIMES, FIRST_PAUSE = 4, 0.2


class StoreUnavailable(CheckpointError):
    """A request failed or took too long; it may have acted. Another try may succeed."""


class StoreRefused(CheckpointError):
    """The store refused: wrong credentials, no permission, a missing bucket."""


class ReadBack(Enum):
    """``NOTHING``: the store refuses an upload whose bytes differ from the hash sent with it. ``SAMPLES``: it
    accepts the hash, but may not check it.
    """

    NOTHING = "nothing"
    SAMPLES = "samples"
    ALL = "all"


@dataclass(frozen=True)
class ObjectFacts:
    """``modified`` is the store's own clock."""

    num_bytes: int
    modified: datetime


class ObjectStore(Protocol):
    """The objects under one URL; names are relative to it. Methods may be called from several threads.

    All raise StoreUnavailable and StoreRefused. Reads by name are consistent; a listing may be outdated, so
    correctness never depends on it.
    """

    @property
    def reads_back(self) -> ReadBack:
        """How much of an upload to read back, given the store's own hash checks."""

    def create(self, name: str, content: bytes) -> bool:
        """Write an object that must not exist; return False, and change nothing, if it does."""

    def put(self, name: str, content: bytes) -> None:
        """Write an object, over one that exists."""

    def put_file(self, name: str, path: Path) -> None:
        """Write an object from a file, a part at a time."""

    def facts(self, name: str) -> ObjectFacts | None:
        """Return an object's size and time of change; None if it does not exist."""

    def get(self, name: str) -> bytes | None:
        """Return a small object; None if there is none."""

    def get_range(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes from ``start`` up to ``end`` (exclusive), all of them."""

    def delete(self, names: Sequence[str]) -> None:
        """Remove objects, where they exist."""

    def names(self, folder: str) -> list[str]:
        """Return the names in ``folder`` and below it, as the store lists them now."""


def again(work: Callable[[], T], *, times: int = _TIMES, pause: Callable[[float], None] = time.sleep) -> T:
    """Return ``work()``, retried while the store is unavailable; only for work that may be done twice."""
    for attempt in range(times - 1):
        try:
            return work()
        except StoreUnavailable:
            pause(FIRST_PAUSE * 2**attempt)
    return work()


def create_own(store: ObjectStore, name: str, content: bytes) -> bool:
    """Create an object whose content nobody else writes; return whether it is there with that content.

    A request that seemed to fail may have acted, and a repeated one finds the first object, so the object
    itself is read.
    """
    try:
        created = store.create(name, content)
    except StoreUnavailable as lost:
        try:
            stored = again(lambda: store.get(name))
        except StoreUnavailable:
            stored = None
        if stored is None:
            raise lost from None
        return stored == content
    return created or again(lambda: store.get(name)) == content
