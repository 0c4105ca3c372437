"""An object store in memory, and one whose requests fail as those of a network do."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from paceline.checkpoint import codes
from paceline.checkpoint.object_store.interface import ObjectFacts, ReadBack, StoreUnavailable
from paceline.checkpoint.object_store.writer import Lease
from paceline.config.registries.object_store_url import ObjectUrl, parse_url

URL: ObjectUrl = parse_url("s3://bucket/run")


class Clock:
    """The store's time; ``pause`` lets it pass."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def pause(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def lease(self) -> Lease:
        return Lease(90.0, 3600.0, self.pause)


class MemoryStore:
    """A store as it should be. ``conditional=False``: a create overwrites."""

    def __init__(self, *, conditional: bool = True, reads_back: ReadBack = ReadBack.NOTHING) -> None:
        self.objects: dict[str, tuple[bytes, datetime]] = {}
        self.conditional = conditional
        self.reads_back = reads_back
        self.clock = Clock()
        self.lock = threading.Lock()

    def create(self, name: str, content: bytes) -> bool:
        with self.lock:
            if self.conditional and name in self.objects:
                return False
            self.objects[name] = (content, self.clock.now)
            return True

    def put(self, name: str, content: bytes) -> None:
        with self.lock:
            self.objects[name] = (bytes(content), self.clock.now)

    def put_file(self, name: str, path: Path) -> None:
        self.put(name, path.read_bytes())

    def facts(self, name: str) -> ObjectFacts | None:
        found = self.objects.get(name)
        return None if found is None else ObjectFacts(len(found[0]), found[1])

    def get(self, name: str) -> bytes | None:
        found = self.objects.get(name)
        return None if found is None else found[0]

    def get_range(self, name: str, start: int, end: int) -> bytes:
        return self.objects[name][0][start:end]

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self.objects.pop(name, None)

    def names(self, folder: str) -> list[str]:
        return [name for name in list(self.objects) if name.startswith(f"{folder}/")]


def lost(name: str) -> StoreUnavailable:
    return StoreUnavailable(codes.OBJECTS_UNAVAILABLE("a fault of the test", name))


class FaultyStore(MemoryStore):
    """Fails at random: before it acts, after it has acted, with a part of the content, twice, lists late."""

    def __init__(self, seed: int, rate: float) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.rate = rate
        self.faults: dict[str, int] = {}

    def fault(self, *kinds: str) -> str:
        with self.lock:
            kind = self.random.choice(kinds) if self.random.random() < self.rate else ""
            if kind:
                self.faults[kind] = self.faults.get(kind, 0) + 1
            return kind

    def create(self, name: str, content: bytes) -> bool:
        kind = self.fault("before", "after", "twice", "torn")
        if kind == "before":
            raise lost(name)
        if kind == "torn":  # a store without checks: half of it is there
            super().create(name, content[: len(content) // 2])
            raise lost(name)
        done = super().create(name, content)
        if kind == "after":
            raise lost(name)
        return super().create(name, content) if kind == "twice" else done

    def put(self, name: str, content: bytes) -> None:
        kind = self.fault("before", "after", "truncated")
        if kind == "before":
            raise lost(name)
        super().put(name, content[: len(content) // 2] if kind == "truncated" else content)
        if kind == "after":
            raise lost(name)

    def facts(self, name: str) -> ObjectFacts | None:
        if self.fault("before"):
            raise lost(name)
        return super().facts(name)

    def get(self, name: str) -> bytes | None:
        if self.fault("before"):
            raise lost(name)
        return super().get(name)

    def get_range(self, name: str, start: int, end: int) -> bytes:
        kind = self.fault("before", "wrong")
        if kind == "before":
            raise lost(name)
        found = super().get_range(name, start, end)
        return bytes([found[0] ^ 1]) + found[1:] if kind == "wrong" and found else found

    def delete(self, names: Sequence[str]) -> None:
        kind = self.fault("before", "after")
        if kind == "before":
            raise lost(names[0])
        super().delete(names)
        if kind == "after":
            raise lost(names[0])

    def names(self, folder: str) -> list[str]:
        found = super().names(folder)
        return found[: len(found) // 2] if self.fault("late") else found
