"""Files from and to an object store: what happens on the way."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from object_stores import MemoryStore

from paceline.checkpoint.manifest_format import FileEntry
from paceline.checkpoint.objects import files
from paceline.checkpoint.objects.store import StoreRefused


def test_no_block_is_written_once_the_descriptor_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    under_way, closed = threading.Event(), threading.Event()
    pwrite, close = os.pwrite, os.close

    class Store(MemoryStore):
        def get_range(self, name: str, start: int, end: int) -> bytes:
            if start == 0:
                under_way.wait(10)
                raise StoreRefused(files.codes.OBJECTS_DENIED("a fault of the test", name))
            under_way.set()
            closed.wait(0.5)  # as long as a close would take that does not wait for this block
            return super().get_range(name, start, end)

    def writes(fd: int, view: Any, at: int) -> int:
        order.append("write")
        return len(view) if closed.is_set() else pwrite(fd, view, at)

    def closes(fd: int) -> None:
        order.append("close")
        close(fd)
        closed.set()

    monkeypatch.setattr(files, "_PIECE", 4)
    monkeypatch.setattr(files, "os", SimpleNamespace(**{**vars(os), "pwrite": writes, "close": closes}))
    store, manifest, entry = Store(), SimpleNamespace(), FileEntry(8, "")
    store.put("f", b"12345678")
    with ThreadPoolExecutor(2) as pool, pytest.raises(StoreRefused):
        files._fetch(store, "f", entry, manifest, tmp_path, "f", pool)  # type: ignore[arg-type]
    assert order == ["write", "close"]
