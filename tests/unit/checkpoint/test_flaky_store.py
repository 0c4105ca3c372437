"""Saves to S3 over a line that fails in every way: nothing that is said to be there is lost or wrong."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from checkpoint_samples import FILES, OneRank, sample_shards
from fault_proxy import FAULTS, Faults, fault_proxy
from object_stores import Clock
from s3_stand_in import s3_stand_in
from test_objects import tree

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.format.block_hashes import BlockSizes
from paceline.checkpoint.object_store.background_upload import Uploads
from paceline.checkpoint.object_store.commits import read_head
from paceline.checkpoint.object_store.obstore_backend import open_store
from paceline.checkpoint.object_store.transfer import download_newest
from paceline.checkpoint.object_store.writer import StoreWriter, check_store
from paceline.checkpoint.save.retention import RetentionRule
from paceline.config.registries.object_store_url import ObjectUrl, parse_url
from paceline.core.errors import CheckpointError
from paceline.core.rundir import RunDir


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)


def soak(
    proxy: str, direct: str, root: Path, saves: int, restart: int, monkeypatch: pytest.MonkeyPatch
) -> int:
    """``saves`` saves, each looked at over a line without faults, and a new start after each ``restart`` of
    them; returns how many went up at once.
    """
    url: ObjectUrl = parse_url("s3://bucket/run")
    monkeypatch.setenv("AWS_ENDPOINT_URL", direct)
    sound = open_store(url)
    check_store(sound, url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy)
    store, run = open_store(url), RunDir.at(root / "run")

    def started() -> Uploads:
        writer = StoreWriter(store, url, "run-a", RetentionRule(3), Clock().lease())
        return Uploads(store, url, OneRank(), writer)

    uploads = started()
    saver, at_once = Checkpointer(run, OneRank(), 2, grain=BlockSizes(4096, 1024)), 0
    for step in range(1, saves + 1):
        path = saver.save(step, sample_shards(step), {"train": {"step": step}}, FILES)
        uploads.published(path)
        notes: list[str] = []
        while not any(path.name in note for note in notes):
            time.sleep(0.002)
            notes += [note.what for note in uploads.take_notes()]
        up = any(note == f"{path.name} is uploaded to {url}" for note in notes)
        at_once += up
        head = read_head(sound, "")[1]
        newest = head.checkpoints[-1] if head is not None else None
        assert not up or (newest is not None and newest.step == step), f"step {step} was lost"
        if step % 10 == 0 or not up:  # what is committed is whole, whatever has failed
            there = download_newest(sound, url, root / f"there{step}")
            assert newest is None or (there is not None and there.path.name == newest.name)
            assert not up or (there is not None and tree(there.path) == tree(path)), f"step {step} is wrong"
        if step % restart == 0:  # the next start claims the URL anew, and lists what the last one left
            uploads.end()
            uploads = started()
    uploads.end()
    head = read_head(sound, "")[1]
    assert head is not None and head.checkpoints[-1].step == saves
    assert len(head.checkpoints) == min(3, saves)
    there = download_newest(store, url, root / "over the failing line")
    assert there is not None and tree(there.path) == tree(run.checkpoint(saves))
    folders = {"/".join(name.split("/")[:2]) for name in sound.names("data")}
    assert {one.folder for one in head.checkpoints} <= folders and len(folders) <= len(head.checkpoints) + 2
    return at_once


def test_a_flaky_store_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = Faults(1, 0.12)
    with s3_stand_in() as (host, port, buckets), fault_proxy(host, port, faults) as proxy:
        at_once = soak(proxy, f"http://{host}:{port}", tmp_path, 12, 4, monkeypatch)
    assert at_once >= 9 and {*FAULTS} == {*faults.seen}, faults.seen
    assert buckets.refused > 0, "halves that arrived were refused by their checksum"
    assert b"AKIA" not in b"".join(buckets.objects.values())


def test_a_large_file_goes_in_parts_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = os.urandom(33 * 1024 * 1024)
    (tmp_path / "big").write_bytes(content)
    with s3_stand_in() as (host, port, buckets):
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        store = open_store(parse_url("s3://bucket/run"))
        store.put_file("data/big", tmp_path / "big")
        assert [len(parts) for parts in buckets.parts.values()] == [3]
        found = store.facts("data/big")
        assert found is not None and found.num_bytes == len(content)
        assert buckets.unchecked == 0, "every part had its checksum"
        assert store.get_range("data/big", 16_000_000, 17_000_000) == content[16_000_000:17_000_000]


def test_what_cannot_be_reached_is_named_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    url = parse_url("s3://bucket/run")
    with pytest.raises(CheckpointError) as error:
        check_store(open_store(url, patient=False), url)
    assert error.value.diagnostics[0].code == "objects.unavailable"
    assert "EXAMPLE" not in str(error.value) and "Authorization" not in str(error.value)


@contextmanager
def moto() -> Iterator[tuple[str, int]]:
    """moto's S3 in a process of its own, with one bucket."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        env={**os.environ, "PYTHONPATH": os.environ.get("MOTO_PATH", "")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            for _ in range(600):
                try:
                    request = urllib.request.Request(f"http://127.0.0.1:{port}/bucket", method="PUT")
                    urllib.request.urlopen(request, timeout=5).close()
                    break
                except OSError:
                    assert server.poll() is None, "moto ended: pip install 'moto[server]' (or set MOTO_PATH)"
                    time.sleep(0.1)
            yield "127.0.0.1", port
        finally:
            server.kill()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_five_hundred_saves_to_moto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saves = int(os.environ.get("SOAK_SAVES", "500"))
    faults = Faults(2, 0.08)
    with moto() as (host, port), fault_proxy(host, port, faults) as proxy:
        at_once = soak(proxy, f"http://{host}:{port}", tmp_path, saves, 20, monkeypatch)
    print(f"{saves} saves, {at_once} up at once, the others named and caught up; faults: {dict(faults.seen)}")
    assert at_once > 0.9 * saves
