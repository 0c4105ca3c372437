"""Files from and to an object store: what happens on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from object_stores import MemoryStore

from paceline.checkpoint.object_store import transfer
from paceline.checkpoint.object_store.interface import ReadBack, StoreUnavailable
from paceline.checkpoint.object_store.obstore_backend import open_store
from paceline.config.registries.object_store_url import parse_url

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
