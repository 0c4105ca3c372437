"""A stopped run waits for its upload until a deadline, then ends: what is not committed is no checkpoint."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoint_samples import OneRank, on_ranks
from filelock import FileLock
from object_stores import URL, MemoryStore
from test_objects import KEEP_ALL, Run, head_of, impatient, save, upload_all, wait_until

from paceline.checkpoint.main import main as verbs
from paceline.checkpoint.object_store.background_upload import Deadline, Uploads
from paceline.checkpoint.object_store.commits import COMMITS, read_head
from paceline.checkpoint.object_store.obstore_backend import open_store
from paceline.checkpoint.object_store.writer import CLAIMS, StoreWriter
from paceline.config.registries.object_store_url import parse_url
from paceline.core.errors import ExitCode
from paceline.core.rundir import RunDir

__all__ = ["impatient"]


class SlowStore(MemoryStore):
    """Files go up only once ``gate`` is open; ``begun``: one is about to."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.begun = threading.Event(), threading.Event()

    def put_file(self, name: str, path: Path) -> None:
        self.begun.set()
        assert self.gate.wait(30)
        super().put_file(name, path)


@pytest.fixture
def store() -> Iterator[SlowStore]:
    of = SlowStore()
    yield of
    of.gate.set()


def stopped(ago: float = 0.0, seconds: float = 0.05) -> Deadline:
    at = time.monotonic() - ago
    return Deadline(seconds, lambda: at)


def test_without_a_stop_there_is_no_limit() -> None:
    assert Deadline(1.0).left() == math.inf and stopped(ago=2.0, seconds=1.0).left() < 0
    assert 50 < stopped(ago=1.0, seconds=60).left() < 60


def test_a_stopped_run_ends_although_its_upload_does_not(tmp_path: Path, store: SlowStore) -> None:
    of = Run(store, tmp_path)
    path = of.save(1)
    assert of.uploads.end(deadline=stopped()) is False and of.uploads.is_working
    (note,) = of.notes
    assert (note.code, note.severity.value, note.where) == ("objects.not_in_time", "warning", str(path))
    assert (
        note.what == f"step-00000001 is on the disk, but was not uploaded to {URL} within 0.05 s of the stop"
    )
    assert "paceline checkpoints upload RUN URL" in note.hint
    # the next run need not wait for the lease's end; a busy machine may be late with the thread that says so
    wait_until(lambda: f"{CLAIMS}/00000001.ended" in store.objects)
    store.gate.set()  # the process lives a little longer
    wait_until(lambda: not of.uploads.is_working)
    assert read_head(store, "") == (0, None), "nothing is committed after it was given up"


def test_an_upload_that_comes_in_time_is_whole(tmp_path: Path, store: SlowStore) -> None:
    of = Run(store, tmp_path)
    of.save(1)
    threading.Timer(0.1, store.gate.set).start()
    assert of.uploads.end(deadline=stopped(seconds=30)) is True
    assert of.codes() == ["objects.uploaded"] and [one.step for one in head_of(store).checkpoints] == [1]


def test_a_commit_that_is_under_way_at_the_deadline_counts(tmp_path: Path) -> None:
    store, begun = MemoryStore(), threading.Event()
    of, create = Run(store, tmp_path), store.create

    def slow(name: str, content: bytes) -> bool:
        if name.startswith(COMMITS):
            begun.set()
            time.sleep(0.2)
        return create(name, content)

    store.create = slow  # type: ignore[method-assign]
    of.save(1)
    assert begun.wait(10)
    assert of.uploads.end(deadline=stopped(ago=1.0)) is True
    wait_until(lambda: of.codes() == ["objects.uploaded"])


def test_all_ranks_give_up_when_one_was_stopped(tmp_path: Path, store: SlowStore) -> None:
    run, asked, flags, ends = RunDir.at(tmp_path), threading.Barrier(3), [False] * 3, list[Any]()

    def work(world: Any) -> tuple[bool, list[str]]:
        def any_rank(flag: bool) -> bool:
            flags[world.rank] = flag
            asked.wait(20)
            found = any(flags)
            asked.wait(20)
            return found

        path = save(run, 5, world)
        writer = StoreWriter(store, URL, "r", KEEP_ALL, store.clock.lease()) if world.rank == 0 else None
        uploads = Uploads(store, URL, world, writer)
        ends.append(uploads)
        uploads.published(path)
        up = uploads.end(lambda: None, stopped() if world.rank == 2 else Deadline(), any_rank)
        return up, [note.code for note in uploads.take_notes()]

    found = on_ranks(3, work)
    assert sorted(found) == [(False, []), (False, []), (False, ["objects.not_in_time"])], found
    store.gate.set()
    wait_until(lambda: not any(one.is_working for one in ends))
    assert read_head(store, "") == (0, None)


def test_a_second_interrupt_ends_the_wait() -> None:
    program = """
        import os, signal, sys, threading, time
        sys.path.insert(0, "tests/unit/checkpoint")
        from pathlib import Path
        from types import SimpleNamespace
        from object_stores import URL, MemoryStore
        from paceline.checkpoint.object_store.background_upload import Deadline
        from paceline.checkpoint.object_store.background_upload import Uploads
        from paceline.checkpoint.object_store.writer import StoreWriter
        from paceline.checkpoint.save.retention import RetentionRule
        from paceline.training.stop_signals import StopSignals

        store, signals = MemoryStore(), StopSignals()
        world = SimpleNamespace(rank=0, world_size=1, all_gather_json=lambda value: time.sleep(60))
        uploads = Uploads(store, URL, world, StoreWriter(store, URL, "r", RetentionRule(None)))
        uploads.published(Path("step-00000001"))
        os.kill(os.getpid(), signal.SIGINT)
        print("asked", flush=True)
        uploads.end(deadline=Deadline(60.0, lambda: signals.since))
    """
    done = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    )
    assert done.stdout is not None and done.stdout.readline() == "asked\n"
    done.send_signal(signal.SIGINT)
    try:
        assert done.wait(20) == ExitCode.INTERRUPTED
    finally:
        done.kill()
        done.stdout.close()


def test_the_next_start_uploads_what_the_url_lacks(tmp_path: Path) -> None:
    store = MemoryStore()
    of = upload_all(store, tmp_path, [1])
    path = save(of.run, 2)
    for expected in (["objects.uploaded"], []):  # the second time it is there
        later = Run(store, tmp_path)
        later.uploads.resumed(path)
        assert later.uploads.end() is True and later.codes() == expected
    assert [one.step for one in head_of(store).checkpoints] == [1, 2]


def test_a_resumed_one_gives_way_to_a_newer_one_and_is_found_on_fewer_ranks(tmp_path: Path) -> None:
    store, run = MemoryStore(), RunDir.at(tmp_path)
    paths = on_ranks(2, lambda world: save(run, 3, world))
    one = StoreWriter(store, URL, "r", KEEP_ALL, store.clock.lease())
    uploads = Uploads(store, URL, OneRank(), one)
    uploads.resumed(paths[0])  # of two ranks, by one
    assert uploads.end() and [note.code for note in uploads.take_notes()] == ["objects.uploaded"]


def test_a_checkpoint_is_uploaded_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, url = RunDir.at(tmp_path / "a"), f"file://{tmp_path}/store"
    for step in (1, 2):
        save(run, step)
    assert verbs(["upload", str(run.root), url, "--checkpoint", "step-1"]) == 0
    assert verbs(["upload", str(run.root), url, "--json"]) == 0
    assert verbs(["upload", str(run.root), url]) == 0
    out, err = capsys.readouterr()
    assert f"{url}/step-00000002 is there already" in out and '"uploaded": true' in out
    assert err.count("is uploaded to") == 2
    head = read_head(open_store(parse_url(url)), url)[1]
    assert head is not None and [one.step for one in head.checkpoints] == [1, 2]
    assert verbs(["upload", str(run.root), url, "--checkpoint", "step-1"]) == ExitCode.FAILED
    assert "the URL has a newer checkpoint" in capsys.readouterr().err
    other = RunDir.at(tmp_path / "b")
    save(other, 3)
    assert verbs(["upload", str(other.root), url]) == ExitCode.FAILED
    assert "the checkpoints of another run" in capsys.readouterr().err


def test_a_damaged_checkpoint_and_a_running_run_are_not_uploaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, url = RunDir.at(tmp_path / "a"), f"file://{tmp_path}/store"
    state = save(run, 1) / "state.json"
    with FileLock(run.lock):
        assert verbs(["upload", str(run.root), url]) == ExitCode.STOPPED
    assert "run.in_use" in capsys.readouterr().err
    assert verbs(["upload", str(run.root), f"{url}/step-00000001"]) == ExitCode.CONFIG
    state.write_bytes(state.read_bytes()[:-1] + b" ")
    assert verbs(["upload", str(run.root), url]) != 0 and not (tmp_path / "store/commits").exists()
