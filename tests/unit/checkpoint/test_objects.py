"""Checkpoints in an object store: committed once and whole, by one writer, and brought down as they were."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoint_samples import FILES, OneRank, on_ranks, sample_shards, whole
from object_stores import URL, FaultyStore, MemoryStore, lost

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.load.find_checkpoint import find_checkpoint
from paceline.checkpoint.object_store.background_upload import Uploads
from paceline.checkpoint.object_store.commands import state_of
from paceline.checkpoint.object_store.commits import COMMITS, Commit, last_number, read_head
from paceline.checkpoint.object_store.interface import ObjectStore, ReadBack, StoreRefused, create_own
from paceline.checkpoint.object_store.transfer import download_named, download_newest
from paceline.checkpoint.object_store.writer import StoreWriter, check_store, take_claim, wait_until_free
from paceline.checkpoint.save.retention import RetentionRule
from paceline.config.registries.object_store_url import parse_url
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError
from paceline.core.rundir import RunDir

KEEP_ALL = RetentionRule(None)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.checkpoint.object_store.interface.FIRST_PAUSE", 0.001)


def save(run: RunDir, step: int, world: Any = None, keep: int | None = None) -> Path:
    world = world or OneRank()
    shards = sample_shards(step) if world.rank == 0 else [whole("model.r", sample_shards(step)[0].tensor)]
    return Checkpointer(run, world, keep).save(step, shards, {"train": {"step": step}}, FILES)


class Run:
    """A run with one rank: its folder, its uploads and their notes."""

    def __init__(self, store: Any, root: Path, keep: int | None = None, name: str = "run-a") -> None:
        self.run = RunDir.at(root)
        self._notes: list[Diagnostic] = []
        self.writer = StoreWriter(store, URL, name, RetentionRule(keep), store.clock.lease())
        self.uploads = Uploads(store, URL, OneRank(), self.writer)

    @property
    def notes(self) -> list[Diagnostic]:
        self._notes += self.uploads.take_notes()
        return self._notes

    def save(self, step: int, best: str | None = None) -> Path:
        path = save(self.run, step)
        self.uploads.published(path, best)
        return path

    def codes(self) -> list[str]:
        return [note.code for note in self.notes]


def upload_all(store: Any, root: Path, steps: list[int], keep: int | None = None, name: str = "run-a") -> Run:
    """A run that uploads ``steps``, one after another, and ends."""
    of = Run(store, root, keep, name)
    for step in steps:
        of.save(step)
        wait_until(lambda step=step: any(f"step-{step:08d}" in n.what for n in of.notes))
    of.uploads.end()
    return of


def wait_until(until: Callable[[], bool]) -> None:
    for _ in range(2000):
        if until():
            return
        time.sleep(0.005)
    raise AssertionError("it did not happen")


def head_of(store: Any) -> Commit:
    commit = read_head(store, "")[1]
    assert commit is not None
    return commit


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_what_goes_up_comes_down_byte_for_byte(tmp_path: Path) -> None:
    store = MemoryStore()
    upload_all(store, tmp_path / "a", [1, 2, 3])
    assert [one.name for one in head_of(store).checkpoints] == [f"step-0000000{n}" for n in (1, 2, 3)]
    there = RunDir.at(tmp_path / "b")
    brought = download_newest(store, URL, there.checkpoints)
    assert brought is not None and brought.path == there.checkpoint(3)
    assert tree(brought.path) == tree(RunDir.at(tmp_path / "a").checkpoint(3))
    assert find_checkpoint("latest", there) == there.checkpoint(3)
    assert download_newest(store, URL, there.checkpoints) is None, "one as new is there"
    save(there, 4)
    assert download_newest(store, URL, there.checkpoints) is None, "a newer one is there"


def test_an_older_local_checkpoint_gives_way(tmp_path: Path) -> None:
    store = MemoryStore()
    upload_all(store, tmp_path / "a", [1, 2])
    there = RunDir.at(tmp_path / "b")
    save(there, 1)
    brought = download_newest(store, URL, there.checkpoints)
    assert brought is not None and brought.path.name == "step-00000002"
    assert find_checkpoint("auto", there) == brought.path


def test_one_is_named_by_its_url(tmp_path: Path) -> None:
    store = MemoryStore()
    upload_all(store, tmp_path / "a", [1, 2])
    one = dataclasses.replace(URL, step="step-00000001")
    brought = download_named(store, one, tmp_path / "f")
    assert brought.path == tmp_path / "f/step-00000001"
    assert find_checkpoint(str(brought.path), RunDir.at(tmp_path)) == brought.path
    assert download_named(store, URL, tmp_path / "f").path.name == "step-00000002"
    with pytest.raises(CheckpointError, match="available: step-00000001, step-00000002"):
        download_named(store, dataclasses.replace(URL, step="step-00000009"), tmp_path / "f")


def test_each_rank_uploads_its_own(tmp_path: Path) -> None:
    store, run = MemoryStore(), RunDir.at(tmp_path)
    sent: dict[int, list[str]] = {0: [], 1: [], 2: []}

    class OfRank:
        reads_back = ReadBack.NOTHING

        def __init__(self, rank: int) -> None:
            self.rank = rank

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def put_file(self, name: str, path: Path) -> None:
            sent[self.rank].append(path.name)
            store.put_file(name, path)

    def work(world: Any) -> None:
        path = save(run, 5, world)
        writer = StoreWriter(store, URL, "r", KEEP_ALL, store.clock.lease()) if world.rank == 0 else None
        uploads = Uploads(OfRank(world.rank), URL, world, writer)
        uploads.published(path)
        uploads.end()

    assert on_ranks(3, work) == [None] * 3
    assert sent[1] == ["shard-00001-of-00003.safetensors"] and sent[2] == ["shard-00002-of-00003.safetensors"]
    assert "manifest.json" in sent[0] and "state.json" in sent[0] and len(sent[0]) == 5
    assert download_newest(store, URL, tmp_path / "there") is not None


def test_a_rank_that_fails_fails_all_and_commits_nothing(tmp_path: Path) -> None:
    store, run = MemoryStore(), RunDir.at(tmp_path)

    class Broken:
        reads_back = ReadBack.NOTHING

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def put_file(self, name: str, path: Path) -> None:
            raise lost(name)

    def work(world: Any) -> None:
        path = save(run, 5, world)
        writer = StoreWriter(store, URL, "r", KEEP_ALL, store.clock.lease()) if world.rank == 0 else None
        of_rank: ObjectStore = Broken() if world.rank else store  # type: ignore[assignment]
        uploads = Uploads(of_rank, URL, world, writer)
        uploads.published(path)
        uploads.end()

    failed = on_ranks(2, work)
    assert [type(one) for one in failed] == [CheckpointError] * 2 and "a fault of the test" in str(failed[0])
    assert read_head(store, "") == (0, None)


def test_a_failure_is_a_warning_and_the_next_save_goes_up(tmp_path: Path) -> None:
    store = MemoryStore()
    of = Run(store, tmp_path)
    put, store.put_file = store.put_file, lambda name, path: (_ for _ in ()).throw(lost(name))  # type: ignore[method-assign]
    of.save(1)
    wait_until(lambda: of.codes() == ["objects.unavailable"])
    assert of.notes[0].severity.value == "warning" and "step-00000001 is on the disk" in of.notes[0].what
    store.put_file = put  # type: ignore[method-assign]
    of.save(2)
    of.uploads.end()
    assert [one.step for one in head_of(store).checkpoints] == [2]


def test_the_last_one_is_tried_once_more_then_raises(tmp_path: Path) -> None:
    store = MemoryStore()
    of = Run(store, tmp_path)
    store.put_file = lambda name, path: (_ for _ in ()).throw(lost(name))  # type: ignore[method-assign]
    of.save(1)
    with pytest.raises(CheckpointError, match="a fault of the test"):
        of.uploads.end()
    assert of.codes() == ["objects.unavailable"], "named when it failed, raised when it failed again"


def test_retention_never_removes_the_newest_nor_the_best(tmp_path: Path) -> None:
    store = MemoryStore()
    of = Run(store, tmp_path, keep=1)
    for step in (1, 2, 3):
        of.save(step, best="step-00000001")
        wait_until(lambda step=step: any(f"step-{step:08d} is uploaded" in n.what for n in of.notes))
    of.uploads.end()
    head = head_of(store)
    assert [one.step for one in head.checkpoints] == [1, 3]
    folders = {"/".join(name.split("/")[:2]) for name in store.objects if name.startswith("data/")}
    assert folders == {one.folder for one in head.checkpoints}, "what no commit names is gone"


def test_a_newer_one_goes_first_where_uploads_are_slow(tmp_path: Path) -> None:
    store, begun, gate = MemoryStore(), threading.Event(), threading.Event()
    of, put = Run(store, tmp_path), store.put_file

    def slow(name: str, path: Path) -> None:
        begun.set()
        gate.wait(10)
        put(name, path)

    store.put_file = slow  # type: ignore[method-assign]
    of.save(1)
    begun.wait(10)
    of.save(2)
    of.save(3)
    gate.set()
    of.uploads.end()
    assert [one.step for one in head_of(store).checkpoints] == [1, 3]
    assert of.codes() == ["objects.uploaded", "objects.skipped", "objects.uploaded"]


def test_a_commit_that_timed_out_but_succeeded_is_ours(tmp_path: Path) -> None:
    store = MemoryStore()
    of, create = Run(store, tmp_path), store.create

    def late(name: str, content: bytes) -> bool:
        done = create(name, content)
        if name.startswith(COMMITS):
            raise lost(name)
        return done

    store.create = late  # type: ignore[method-assign]
    of.save(1)
    of.uploads.end()
    assert of.codes() == ["objects.uploaded"] and len(head_of(store).checkpoints) == 1


def test_the_loser_of_a_race_is_refused_by_name(tmp_path: Path) -> None:
    store = MemoryStore()
    of, create = Run(store, tmp_path), store.create

    def raced(name: str, content: bytes) -> bool:
        if name.startswith(COMMITS):  # another run commits at the very moment
            create(name, Commit(1, "someone", 1.0, ()).to_bytes())
        return create(name, content)

    store.create = raced  # type: ignore[method-assign]
    of.save(1)
    with pytest.raises(CheckpointError) as error:
        of.uploads.end()
    assert error.value.diagnostics[0].code == "objects.other_writer"
    assert head_of(store).writer == "someone"


def test_a_run_that_was_taken_over_commits_no_more(tmp_path: Path) -> None:
    store = MemoryStore()
    first = Run(store, tmp_path / "a")
    first.save(1)
    wait_until(lambda: "objects.uploaded" in first.codes())
    store.clock.pause(100)
    second = upload_all(store, tmp_path / "b", [1], name="run-b")
    assert second.codes() == ["objects.uploaded"]
    first.save(2)
    with pytest.raises(CheckpointError) as error:
        first.uploads.end()
    assert error.value.diagnostics[0].code == "objects.other_writer"


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims say nothing of processes, as those of another machine."""
    monkeypatch.setattr("paceline.checkpoint.object_store.writer.this_process", dict)


def test_a_live_claim_is_refused_and_a_silent_one_taken_over(elsewhere: None) -> None:
    store = MemoryStore()
    lease = store.clock.lease()
    take_claim(store, URL, "run-a", lease)
    assert take_claim(store, URL, "run-a", lease).number == 2, "the same run goes on at once"

    def lives(seconds: float) -> None:
        store.clock.pause(seconds)
        store.put("claims/00000002.alive", b"{}")

    with pytest.raises(CheckpointError) as error:
        wait_until_free(store, URL, "run-b", dataclasses.replace(lease, pause=lives))
    found = error.value.diagnostics[0]
    assert found.code == "objects.in_use" and "run run-a on " in found.found
    before = store.clock.now
    assert wait_until_free(store, URL, "run-b", lease) == 2
    assert 80 <= (store.clock.now - before).total_seconds() <= 100, "a lease's time, by the store's clock"


def test_a_claim_that_was_given_back_is_free_at_once(elsewhere: None) -> None:
    store = MemoryStore()
    before = store.clock.now
    take_claim(store, URL, "run-a", store.clock.lease()).end()
    assert take_claim(store, URL, "run-b", store.clock.lease()).number == 2 and store.clock.now == before


def test_a_claim_of_a_process_that_died_here_is_free_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    take_claim(store, URL, "run-a", store.clock.lease())
    before = store.clock.now
    monkeypatch.setattr("paceline.checkpoint.object_store.writer.started_at", lambda pid: "another process")
    assert take_claim(store, URL, "run-b", store.clock.lease()).number == 2 and store.clock.now == before


def test_a_store_without_conditional_create_is_refused(tmp_path: Path) -> None:
    store = MemoryStore(conditional=False)
    with pytest.raises(StoreRefused, match="no conditional create"):
        check_store(store, URL)
    assert store.objects == {}


def test_a_damaged_object_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    store = MemoryStore()
    upload_all(store, tmp_path / "a", [1, 2])
    name = next(n for n in store.objects if "step-00000002" in n and n.endswith(".safetensors"))
    content, when = store.objects[name]
    store.objects[name] = (content[:-1] + bytes([content[-1] ^ 1]), when)
    brought = download_newest(store, URL, tmp_path / "b")
    assert brought is not None and brought.path.name == "step-00000001"
    assert [note.code for note in brought.notes] == ["resume.skipped_incomplete", "objects.fetched"]
    assert [path.name for path in (tmp_path / "b").glob(".staging*")] == []
    del store.objects[next(n for n in store.objects if "step-00000001" in n and n.endswith("state.json"))]
    with pytest.raises((CheckpointError, KeyError)):
        download_newest(store, URL, tmp_path / "c")


def test_a_store_that_checks_nothing_is_read_back(tmp_path: Path) -> None:
    store = MemoryStore(reads_back=ReadBack.ALL)
    of, put = Run(store, tmp_path), store.put_file
    wrong: list[str] = []

    def flipped(name: str, path: Path) -> None:
        put(name, path)
        if not wrong:
            wrong.append(name)
            content, when = store.objects[name]
            store.objects[name] = (bytes([content[0] ^ 1]) + content[1:], when)

    store.put_file = flipped  # type: ignore[method-assign]
    of.save(1)
    of.uploads.end()
    assert wrong and tree(download_newest(store, URL, tmp_path / "b").path) == tree(of.run.checkpoint(1))  # type: ignore[union-attr]


def test_a_dead_writers_uploads_are_removed_by_the_next(tmp_path: Path) -> None:
    store = MemoryStore()
    dead = StoreWriter(store, URL, "r", KEEP_ALL, store.clock.lease())
    folder = dead.begin("step-00000001", ["state.json"])
    store.put(f"{folder}/state.json", b"{}")
    upload_all(store, tmp_path, [1], name="r")
    assert [name for name in store.objects if name.startswith(folder)] == []


@pytest.mark.parametrize("last", [*range(12), 100, 511, 512, 1000])
def test_the_newest_number_is_found_by_asking(last: int) -> None:
    asked: list[int] = []

    def exists(number: int) -> bool:
        asked.append(number)
        return 1 <= number <= last

    assert last_number(exists) == last and len(asked) <= 2 * max(1, last).bit_length() + 1


def test_a_create_is_told_from_anothers() -> None:
    store = MemoryStore()
    assert create_own(store, "a", b"mine") and create_own(store, "a", b"mine")
    assert not create_own(store, "a", b"another's")


@pytest.mark.parametrize("seed", range(3))
def test_faults_lose_nothing(tmp_path: Path, seed: int) -> None:
    """A third of all requests fail, in every way; what is committed is whole, and at the end all is up."""
    store = FaultyStore(seed, 0.0)
    of = Run(store, tmp_path / "a", keep=3)
    of.writer.open()
    store.rate = 0.15
    for step in range(1, 11):
        path = of.save(step)
        wait_until(lambda path=path: any(n.what.startswith(path.name) for n in of.notes))
        rate, store.rate = store.rate, 0.0
        up = [n for n in of.notes if n.what == f"{path.name} is uploaded to {URL}"]
        checkpoints = head_of(store).checkpoints
        assert bool(up) == bool(checkpoints and checkpoints[-1].name == path.name)
        assert checkpoints == () or download_newest(store, URL, tmp_path / f"b{step}") is not None
        store.rate = rate
    store.rate = 0.0
    of.save(11)
    of.uploads.end()
    brought = download_newest(store, URL, tmp_path / "end")
    assert brought is not None and tree(brought.path) == tree(of.run.checkpoint(11))
    assert sum(store.faults.values()) > 10 and len(store.faults) >= 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hdfs://host/run", "hdfs:// has no conditional create"),
        ("memory://run", "no conditional create"),
        ("s3://key:secret@bucket/run", "no user name and no password"),
        ("s3://key@bucket/run", "no user name"),
        ("s3://bucket/run?sig=abc", r"no \?query"),
        ("s3:///run", "no bucket is named"),
        ("s3://bucket", "name a folder of the run"),
        ("s3://bucket/step-00000001", "name a folder of the run"),
        ("s3://bucket/../run", "no plain name"),
        ("file://host/run", "three slashes"),
    ],
)
def test_urls_that_are_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        parse_url(text)
    assert "key" not in str(error.value) and "abc" not in str(error.value)


def test_urls() -> None:
    one = parse_url("s3://bucket/a/run/step-00000500/")
    assert (one.store, one.place, one.prefix, one.step) == ("s3", "bucket", "a/run", "step-00000500")
    assert str(one) == "s3://bucket/a/run"
    assert parse_url("gcs://b/run").store == "gs" and parse_url("abfs://c@account.dfs.core/run").store == "az"
    assert str(parse_url("file:///disk/run")) == "file:///disk/run"


def test_a_checkpoint_is_fetched_for_the_other_verbs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from paceline.checkpoint.main import main
    from paceline.checkpoint.object_store.obstore_backend import open_store

    url = parse_url(f"file://{tmp_path}/store")
    run = RunDir.at(tmp_path / "a")
    writer = StoreWriter(open_store(url), url, "r", KEEP_ALL)
    uploads = Uploads(open_store(url), url, OneRank(), writer)
    uploads.published(save(run, 3))
    uploads.end()
    assert main(["fetch", str(url), "--to", str(tmp_path / "b")]) == 0
    assert tree(RunDir.at(tmp_path / "b").checkpoint(3)) == tree(run.checkpoint(3))
    assert main(["list", str(tmp_path / "b")]) == 0 and "step-00000003" in capsys.readouterr().out
    assert main(["fetch", f"{url}/step-00000009", "--to", str(tmp_path / "b")]) == 1
    assert main(["fetch", "hdfs://host/run", "--to", str(tmp_path / "b")]) == 2
    assert "save.checkpoint_url" in capsys.readouterr().err


def test_the_state_of_a_url_is_its_last_commit_and_its_holder(tmp_path: Path) -> None:
    store = MemoryStore()
    assert state_of(store, URL) == "held by     no run\ncheckpoint  none committed"
    upload_all(store, tmp_path / "run", [5])
    lines = state_of(store, URL).splitlines()
    assert lines[0].startswith("held by     run run-a on ") and "has given it back" in lines[0]
    assert lines[1].startswith(f"checkpoint  {URL}/step-00000005, commit 1, ")
    store.objects["commits/00000002.json"] = (
        b'{"format": "paceline-ob',
        store.clock.now,
    )  # a write cut short
    assert "unreadable  commit 2" in state_of(store, URL) and "step-00000005, commit 1" in state_of(
        store, URL
    )
