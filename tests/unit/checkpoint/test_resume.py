"""Which checkpoint is taken, what is passed over, what is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_samples import OneRank, sample_shards

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.load.find_checkpoint import find_checkpoint, same_run
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError
from paceline.core.rundir import RunDir

Save = Callable[..., Path]
SHARD = "shard-00000-of-00001.safetensors"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def make_hole(path: Path) -> None:
    """Zeros in the place of the last half, as after a crash of a file system that knew the size only."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


DAMAGE: dict[str, Callable[[Path], None]] = {
    "bit": lambda c: flip(c / SHARD),
    "cut": lambda c: truncate(c / SHARD),
    "hole": lambda c: make_hole(c / SHARD),
    "shard_of_another_step": (
        lambda c: (c / SHARD).write_bytes((c.parent / "step-00000001" / SHARD).read_bytes())
    ),
    "gone": lambda c: (c / SHARD).unlink(),
    "state_bit": lambda c: flip(c / "state.json"),
    "side_file_bit": lambda c: flip(c / "hf" / "config.json"),
    "no_manifest": lambda c: (c / "manifest.json").unlink(),
    "torn_manifest": lambda c: truncate(c / "manifest.json"),
    "empty_manifest": lambda c: (c / "manifest.json").write_bytes(b""),
    "old_manifest": (
        lambda c: (c / "manifest.json").write_bytes(
            (c.parent / "step-00000001" / "manifest.json").read_bytes()
        )
    ),
    "empty_folder": lambda c: [p.unlink() for p in c.rglob("*") if p.is_file()] and None,
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_newest_one_is_passed_over_with_a_note(run: RunDir, save: Save, kind: str) -> None:
    save(1)
    DAMAGE[kind](save(2))
    notes: list[Diagnostic] = []
    assert find_checkpoint("latest", run, notes) == run.checkpoint(1)
    assert [n.code for n in notes] == ["resume.skipped_incomplete", "resume.chosen"]
    assert "step-00000002" in notes[0].what and notes[0].found
    assert "1 step is trained again" in notes[0].hint
    assert run.checkpoint(2).exists()


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_one_asked_for_by_path_is_refused(run: RunDir, save: Save, kind: str) -> None:
    save(1)
    path = save(2)
    DAMAGE[kind](path)
    with pytest.raises(CheckpointError):
        find_checkpoint(str(path), run)


@pytest.mark.parametrize("kind", DAMAGE)
def test_opening_a_damaged_one_is_refused(save: Save, kind: str) -> None:
    save(1)
    path = save(2)
    DAMAGE[kind](path)
    with pytest.raises(CheckpointError):
        CheckpointReader(path)


@pytest.mark.parametrize("where", ["latest", "auto"])
def test_only_incomplete_ones_are_refused_and_kept(run: RunDir, save: Save, where: str) -> None:
    flip(save(1) / SHARD)
    (save(2) / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="resume.only_incomplete") as caught:
        find_checkpoint(where, run)
    text = str(caught.value)
    assert (
        "step-00000001" in text
        and "step-00000002" in text
        and "manifest.json is missing" in text
        and "start from scratch" in text
    )
    assert run.checkpoint(1).exists() and run.checkpoint(2).exists()


def test_none_at_all(run: RunDir) -> None:
    assert find_checkpoint("auto", run) is None
    with pytest.raises(CheckpointError, match="resume.no_checkpoint"):
        find_checkpoint("latest", run)
    assert not run.root.exists()


def test_every_way_to_say_it(run: RunDir, save: Save, tmp_path: Path) -> None:
    save(1)
    newest = save(2)
    elsewhere = RunDir.at(tmp_path / "other")
    for where in (run.root, run.checkpoints, run.latest, newest):
        assert find_checkpoint(str(where), elsewhere) == newest
    assert find_checkpoint(str(run.checkpoint(1)), elsewhere) == run.checkpoint(1)
    assert find_checkpoint("latest", run, notes := []) == newest and notes == []


def test_a_checkpoint_moved_elsewhere_is_still_one(run: RunDir, save: Save, tmp_path: Path) -> None:
    moved = tmp_path / "kept-for-later"
    save(1).rename(moved)
    assert find_checkpoint(str(moved), run) == moved


@pytest.mark.parametrize("hint", ["step-00000001", "../../x", "step-99999999", "", "\0", "x" * 1000])
def test_latest_is_only_a_hint(run: RunDir, save: Save, hint: str) -> None:
    save(1)
    save(2)
    run.latest.write_text(hint)
    assert find_checkpoint("latest", run) == run.checkpoint(2)
    assert find_checkpoint(str(run.latest), run) == run.checkpoint(2)


def test_paths_that_are_none(run: RunDir, save: Save, tmp_path: Path) -> None:
    save(1)
    with pytest.raises(CheckpointError, match="does not exist; available: step-00000001") as caught:
        find_checkpoint(str(run.checkpoints / "step-00000009"), run)
    assert caught.value.diagnostics[0].code == "resume.not_a_checkpoint"
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text("{}")
    (tmp_path / "hf" / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"model: \{name_or_path: "):
        find_checkpoint(str(tmp_path / "hf"), run)
    with pytest.raises(CheckpointError, match="not_a_checkpoint"):
        find_checkpoint(str(tmp_path / "nothing" / "latest"), run)


NOW = {
    "config_digest": "c" * 64,
    "data_fingerprint": "d" * 64,
    "seed": 7,
    "global_batch": 8,
    "seq_len": 96,
    "packing": True,
}


def test_the_same_run_passes_whatever_else_changed() -> None:
    same_run({**NOW, "world_size": 4, "strategy": "single"}, {**NOW, "world_size": 2, "strategy": "ddp"})


@pytest.mark.parametrize("field", NOW)
def test_each_field_that_differs_is_named_with_both_values(field: str) -> None:
    old = {**NOW, field: "old"}
    with pytest.raises(CheckpointError) as caught:
        same_run(old, NOW)
    (found,) = caught.value.diagnostics
    assert (found.code, found.where, found.evidence["old"], found.evidence["new"]) == (
        "checkpoint.other_run",
        field,
        "old",
        NOW[field],
    )
    assert "old in the checkpoint" in found.found and found.hint
    same_run(old, NOW, override=[field])


def test_all_differences_are_told_at_once() -> None:
    with pytest.raises(CheckpointError) as caught:
        same_run({}, NOW)
    assert len(caught.value.diagnostics) == len(NOW)


def test_resume_goes_on_from_the_branch_that_was_saved_last(run: RunDir) -> None:
    saver = Checkpointer(run, OneRank())
    for step in (10, 20, 30, 15):
        saver.save(step, sample_shards(step), {}, {})
    assert find_checkpoint("latest", run) == run.checkpoint(15)
