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

from paceline.checkpoint.format.manifest import FileEntry
from paceline.checkpoint.object_store import transfer
from paceline.checkpoint.object_store.interface import ReadBack, StoreRefused, StoreUnavailable
from paceline.checkpoint.object_store.obstore_backend import open_store
from paceline.config.registries.object_store_url import parse_url


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
                raise StoreRefused(transfer.codes.OBJECTS_DENIED("a fault of the test", name))
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

    monkeypatch.setattr(transfer, "PIECE", 4)
    monkeypatch.setattr(transfer, "os", SimpleNamespace(**{**vars(os), "pwrite": writes, "close": closes}))
    store, manifest, entry = Store(), SimpleNamespace(), FileEntry(8, "")
    store.put("f", b"12345678")
    with ThreadPoolExecutor(2) as pool, pytest.raises(StoreRefused):
        transfer.fetch_file(store, "f", entry, manifest, tmp_path, "f", pool)  # type: ignore[arg-type]
    assert order == ["write", "close"]


_MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("http://minio.local:9000", ReadBack.SAMPLES),
        ("https://amazonaws.com.example.org", ReadBack.SAMPLES),
        ("https://bucket.vpce-1.s3.us-east-1.vpce.amazonaws.com", ReadBack.NOTHING),
        ("", ReadBack.NOTHING),
    ],
)
@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"])
def test_only_amazons_servers_are_believed(
    monkeypatch: pytest.MonkeyPatch, name: str, endpoint: str, expected: ReadBack
) -> None:
    pytest.importorskip("obstore")
    for one in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
        monkeypatch.delenv(one, raising=False)
    monkeypatch.setenv(name, endpoint)
    assert open_store(parse_url("s3://bucket/run")).reads_back is expected


@pytest.mark.parametrize(
    ("size", "at"), [(4 * _MIB, 0), (4 * _MIB, 4 * _MIB - 1), (3 * _MIB, 3 * _MIB // 2), (1, 0)]
)
def test_a_sampled_upload_that_arrived_damaged_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, at: int
) -> None:
    monkeypatch.setattr("paceline.checkpoint.object_store.interface.FIRST_PAUSE", 0.0)
    (tmp_path / "f").write_bytes(bytes(size))

    class Damages(MemoryStore):
        def put_file(self, name: str, path: Path) -> None:
            content = bytearray(path.read_bytes())
            content[at] ^= 1
            self.put(name, bytes(content))

    with pytest.raises(StoreUnavailable, match="arrived damaged"):
        transfer.upload(Damages(reads_back=ReadBack.SAMPLES), tmp_path, ["f"], "data")
    sound = MemoryStore(reads_back=ReadBack.SAMPLES)
    assert transfer.upload(sound, tmp_path, ["f"], "data") == {"f": size}


def test_samples_lie_at_both_ends_and_between() -> None:
    size, between = 5 * _MIB + 7, set[int]()
    for _ in range(50):
        first, one, last = transfer.read_back_ranges(ReadBack.SAMPLES, size)
        assert first == (0, _MIB) and last == (size - _MIB, size)
        assert one[0] >= _MIB and one[1] <= size - _MIB and one[1] - one[0] == _MIB
        between.add(one[0])
    assert len(between) > 1
