"""Object storage before a start: what may write there, and what comes down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checkpoint_samples import OneRank
from test_objects import save, tree

from paceline.checkpoint.load.find_checkpoint import find_checkpoint
from paceline.checkpoint.node_local.shared_disks import Disks
from paceline.checkpoint.object_store.background_upload import open_uploads
from paceline.checkpoint.object_store.obstore_backend import open_store
from paceline.checkpoint.object_store.writer import Lease, take_claim
from paceline.checkpoint.preflight import main
from paceline.checkpoint.save.retention import RetentionRule
from paceline.config.registries.object_store_url import parse_url
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError
from paceline.core.rundir import RunDir

REPLACED = ["warning resume.skipped_incomplete", "note objects.fetched"]


class Place:
    """A URL with the checkpoints of a run, and what a start of another run directory finds there."""

    def __init__(self, tmp_path: Path, *steps: int) -> None:
        self.url, self.tmp_path = f"file://{tmp_path}/store", tmp_path
        self.first, self.run = RunDir.at(tmp_path / "a"), RunDir.at(tmp_path / "b")
        for step in steps:
            path = save(self.first, step)
            uploads = open_uploads(self.url, self.first, OneRank(), RetentionRule(None))
            uploads.published(path)
            uploads.end()

    def start(
        self, resume: str | None, *, own: bool = True, leads: bool = True, several: bool = False
    ) -> list[str]:
        request, answer = self.tmp_path / "request.json", self.tmp_path / "answer.json"
        job = {
            "check": "object_storage",
            "url": self.url if own else None,
            "resume": resume,
            "run": str(self.run.root),
        }
        request.write_text(json.dumps({**job, "access": "private", "leads": leads, "several": several}))
        assert main(str(request), str(answer)) == 0
        return [f"{one['severity']} {one['code']}" for one in json.loads(answer.read_text())]


def test_the_newest_comes_down_and_is_what_the_run_resumes_from(tmp_path: Path) -> None:
    place = Place(tmp_path, 1, 2)
    assert place.start("auto") == ["note objects.fetched"] and place.start("latest") == []
    assert find_checkpoint("latest", place.run) == place.run.checkpoint(2)
    assert tree(place.run.checkpoint(2)) == tree(place.first.checkpoint(2))


def test_a_url_without_checkpoints(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert place.start("auto") == [] and place.start(None) == []
    assert place.start("latest") == ["error resume.no_checkpoint"]


def test_a_node_with_its_own_shards_alone_asks_for_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path, 1, 2)
    part = save(place.run, 1), save(place.run, 2)  # of as new a sequence as the URL's
    for path in part:
        next(path.glob("shard-*")).unlink()  # another node's disk has it
    assert place.start("auto", several=True) == [] and place.start("latest", several=True) == []
    assert not list(part[1].glob("shard-*")) and part[0].is_dir(), "nothing came down"
    assert place.start("auto") == REPLACED, "on one node they are incomplete"


def spoil(checkpoint: Path, how: str, name: str = "shard-*") -> None:
    """Damage a file of a checkpoint: ``flipped`` (a bit), ``cut`` (shorter) or ``gone``."""
    (path,) = checkpoint.glob(name)
    whole = path.read_bytes()
    path.unlink()
    if how != "gone":
        path.write_bytes(whole[:-2] + (bytes([whole[-2] ^ 1]) + whole[-1:] if how == "flipped" else b""))


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("how", ["flipped", "cut"])
def test_the_urls_takes_the_place_of_a_damaged_one(tmp_path: Path, how: str, several: bool) -> None:
    place = Place(tmp_path, 1, 2)
    for step in (1, 2):
        save(place.run, step)
    spoil(place.run.checkpoint(2), how)
    assert place.start("auto", several=several) == [
        "warning resume.skipped_incomplete",
        "note objects.fetched",
    ]
    assert tree(place.run.checkpoint(2)) == tree(place.first.checkpoint(2))
    assert find_checkpoint("latest", place.run) == place.run.checkpoint(2)
    assert place.start("auto", several=several) == [], "now it is sound"


def test_the_newest_sound_one_of_disk_and_url_is_taken(tmp_path: Path) -> None:
    place = Place(tmp_path, 1, 2)
    for step in (1, 2, 3):
        save(place.run, step)
    spoil(place.run.checkpoint(3), "flipped")
    assert place.start("auto") == [], "the disk has the URL's newest"
    assert find_checkpoint("latest", place.run) == place.run.checkpoint(2)
    spoil(place.run.checkpoint(2), "flipped", "state.json")
    assert place.start("latest") == REPLACED
    notes: list[Diagnostic] = []
    assert find_checkpoint("latest", place.run, notes) == place.run.checkpoint(2)
    assert "step-00000003 is skipped" in notes[0].what and "1 step is trained again" in notes[0].hint
    spoil(place.run.checkpoint(2), "flipped")
    spoil(next((tmp_path / "store/data").glob("step-00000002.*")), "flipped")
    assert place.start("latest") == ["warning resume.skipped_incomplete"], "the URL's is no better"
    assert find_checkpoint("latest", place.run) == place.run.checkpoint(1)


def test_nodes_that_shared_a_disk_know_that_a_missing_file_is_nowhere(tmp_path: Path) -> None:
    place = Place(tmp_path, 1)
    spoil(save(place.run, 1), "gone")
    assert place.start("auto", several=True) == [], "another node may have it"
    Disks((0, 1)).remember(place.run)
    assert place.start("auto", several=True) == []
    Disks.one(2).remember(place.run)
    assert place.start("auto", several=True) == REPLACED


def test_a_large_one_is_left_to_the_ranks_and_one_of_a_newer_paceline_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, 1)
    spoil(save(place.run, 1), "flipped")
    monkeypatch.setattr("paceline.checkpoint.object_store.transfer.BEFORE_BYTES", 0)
    assert place.start("auto") == []
    manifest = place.run.checkpoint(1) / "manifest.json"
    data = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**data, "version": 999}))
    assert place.start("auto") == ["error checkpoint.newer"]


def test_a_fetched_copy_that_is_damaged_is_fetched_again(tmp_path: Path) -> None:
    place = Place(tmp_path, 1)
    assert place.start(place.url, own=False) == ["note objects.fetched"]
    found = find_checkpoint(place.url, place.run)
    assert found is not None
    spoil(found, "flipped")
    assert place.start(place.url, own=False) == ["note objects.fetched"]
    assert find_checkpoint(place.url, place.run) == found


def test_a_fresh_node_takes_the_urls_or_leaves_it_to_the_others(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert place.start("latest", several=True) == [] and place.start("auto", several=True) == []
    place = Place(tmp_path, 1)
    data = next((tmp_path / "store/data").glob("step-*/state.json"))
    whole = data.read_bytes()
    data.write_bytes(whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:])
    assert place.start("latest", several=True) == ["warning resume.skipped_incomplete"]
    assert place.start("latest") == ["error resume.only_incomplete"]
    data.write_bytes(whole)
    assert place.start("latest", several=True) == ["note objects.fetched"]


def test_a_url_that_holds_a_run_is_no_place_for_a_new_one(tmp_path: Path) -> None:
    place = Place(tmp_path, 1)
    assert place.start(None) == ["error objects.holds_run"] and not place.run.checkpoints.exists()
    assert place.start(None, leads=False) == [], "its first node says it"


def test_another_runs_checkpoint_is_named_by_its_url(tmp_path: Path) -> None:
    place = Place(tmp_path, 1, 2)
    one = f"{place.url}/step-00000001"
    assert place.start(one, own=False) == ["note objects.fetched"] and place.start(one, own=False) == []
    found = find_checkpoint(one, place.run)
    assert found is not None and tree(found) == tree(place.first.checkpoint(1))
    assert not place.run.checkpoints.exists(), "it is none of this run's"
    assert place.start(place.url, own=False) == ["note objects.fetched"]
    assert find_checkpoint(place.url, place.run) == found.with_name("step-00000002")
    assert place.start(f"{place.url}/step-00000009", own=False) == ["error resume.not_a_checkpoint"]


def test_a_second_writer_is_refused_before_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path)
    monkeypatch.setattr("paceline.checkpoint.object_store.writer.this_process", dict)
    url, slow = parse_url(place.url), Lease(0.5, 0.05)
    take_claim(open_store(url), url, "another run", slow)
    monkeypatch.setattr("paceline.checkpoint.preflight.Lease", lambda: slow)
    assert place.start("auto") == ["error objects.in_use"]
    monkeypatch.setattr(
        "paceline.checkpoint.object_store.writer.take_claim", lambda *a: take_claim(*a[:3], slow)
    )
    place.run.root.mkdir()
    with pytest.raises(CheckpointError, match=r"objects\.in_use"):
        open_uploads(place.url, place.run, OneRank(), RetentionRule(None))


def test_a_url_that_refuses_is_named(tmp_path: Path) -> None:
    place = Place(tmp_path)
    (tmp_path / "store").write_text("a file, where a folder should be")
    assert place.start("auto") == ["error objects.unavailable"]
