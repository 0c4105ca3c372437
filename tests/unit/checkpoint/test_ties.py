"""Folder, manifest and state are of one save; a checkpoint that was moved, renamed, linked or nibbled at
is used for what it is, or named.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoint_samples import FILES, OneRank, on_ranks, sample_shards

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.format.verify_files import scan
from paceline.checkpoint.load.find_checkpoint import find_checkpoint
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError
from paceline.core.rundir import RunDir
from paceline.launch.preflight.facts import count_checkpoints
from paceline.protocols.shard import Shard

Save = Callable[..., Path]


def refused(path: Path, run: RunDir) -> str:
    """Neither by its path nor open; the finding."""
    with pytest.raises(CheckpointError) as opened:
        CheckpointReader(path)
    with pytest.raises(CheckpointError) as found:
        find_checkpoint(str(path), run)
    assert opened.value.diagnostics[0].code == found.value.diagnostics[0].code
    return str(found.value)


def swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def test_two_folders_renamed_into_each_other_are_refused_by_name(run: RunDir, save: Save) -> None:
    save(1)
    one, other = save(2), save(3)
    swap(one, other)
    for path, named, inside in ((one, 2, 3), (other, 3, 2)):
        assert f"named step {named}, but its manifest is of step {inside}" in refused(path, run)
    notes: list[Diagnostic] = []
    assert find_checkpoint("latest", run, notes) == run.checkpoint(1)
    assert [n.evidence.get("cause") for n in notes[:-1]] == ["checkpoint.misplaced"] * 2


@pytest.mark.parametrize("name", ["step-00000009", "step-0000000000001"])
def test_one_under_another_steps_name_is_refused_and_under_any_other_name_taken(
    run: RunDir, save: Save, name: str
) -> None:
    wrong = run.checkpoints / name
    right = save(2).rename(wrong)
    assert "checkpoint.misplaced" in refused(right, run)
    with pytest.raises(CheckpointError, match=r"resume\.only_incomplete.*\n.*named step"):
        find_checkpoint("auto", run)
    kept = right.rename(run.checkpoints / "my-favourite")
    assert find_checkpoint(str(kept), run) == kept


@pytest.mark.parametrize("state", [{"train": {"step": 7}}, {"world_size": 4}, {"train": {"step": "2"}}])
def test_a_state_of_another_save_is_refused(run: RunDir, state: dict) -> None:
    path = Checkpointer(run, OneRank()).save(2, sample_shards(2), state, FILES)
    assert "checkpoint.misplaced" in refused(path, run) and "state.json" in refused(path, run)


def test_two_shards_of_a_checkpoint_renamed_into_each_other_are_refused_by_name(run: RunDir) -> None:
    """Of the same size and form, each sound in itself; before they are read, and as they are."""
    for step in (1, 2):
        on_ranks(2, lambda rank, step=step: Checkpointer(run, rank).save(step, blocks(rank.rank), {}, FILES))
    names = [f"shard-{rank:05d}-of-00002.safetensors" for rank in (0, 1)]
    swap(*(run.checkpoint(2) / name for name in names))
    assert "checkpoint.damaged" in refused(run.checkpoint(2), run)
    notes: list[Diagnostic] = []
    assert find_checkpoint("latest", run, notes) == run.checkpoint(1)
    assert notes[0].evidence["cause"] == "checkpoint.damaged" and "1 step is trained again" in notes[0].hint
    reader = CheckpointReader(run.checkpoint(2), ranks=OneRank())
    reader.read("policy", "w", "param")
    with reader, pytest.raises(CheckpointError, match="|".join(names)):
        reader.verify_reads()


def blocks(rank: int) -> list[Shard]:
    half = torch.full((2, 3), float(rank))
    return [Shard("policy", "w", "param", (4, 3), (2 * rank, 0), half)]


def test_files_of_two_checkpoints_are_not_one(run: RunDir, save: Save) -> None:
    one, other = save(1), save(2)
    for name in ("state.json", "shard-00000-of-00001.safetensors", "manifest.json"):
        whole = (other / name).read_bytes()
        (other / name).write_bytes((one / name).read_bytes())
        refused(other, run)
        (other / name).write_bytes(whole)
    assert find_checkpoint(str(other), run) == other


@pytest.mark.parametrize("name", ["manifest.json", "state.json", "hf/config.json", "hf/tokenizer.json"])
def test_a_flip_of_any_byte_of_the_small_files_is_seen(run: RunDir, save: Save, name: str) -> None:
    path = save(1)
    whole = (path / name).read_bytes()
    for place in range(len(whole)):
        (path / name).write_bytes(
            whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :]
        )
        with pytest.raises(CheckpointError):
            CheckpointReader(path).close()
    for length in range(0, len(whole), 7):
        (path / name).write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            find_checkpoint(str(path), run)
    (path / name).write_bytes(whole)
    assert find_checkpoint(str(path), run) == path


def test_a_manifest_of_before_has_no_digest_and_is_read(run: RunDir, tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).parent / "version_1" / "checkpoints", tmp_path / "checkpoints")
    path = tmp_path / "checkpoints" / "step-00000002"
    manifest = json.loads((path / "manifest.json").read_text())
    manifest.pop("digest", None)
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert find_checkpoint(str(path), run) == path


def test_a_manifest_of_now_without_its_digest_is_refused(run: RunDir, save: Save) -> None:
    path = save(1)
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["digest"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="digest"):
        find_checkpoint(str(path), run)


def test_a_link_to_a_checkpoint_on_another_disk_is_used_and_said(
    run: RunDir, save: Save, tmp_path: Path
) -> None:
    save(1)
    save(2).rename(tmp_path / "away")
    run.checkpoint(2).symlink_to(tmp_path / "away")
    notes: list[Diagnostic] = []
    assert find_checkpoint("latest", run, notes) == run.checkpoint(2)
    assert [n.code for n in notes] == ["resume.chosen"] and str(tmp_path / "away") in notes[0].what
    assert count_checkpoints(run) == (2, 0)
    with CheckpointReader(run.checkpoint(2)) as reader:
        assert reader.step == 2


def test_a_link_that_leads_nowhere_or_to_another_step_is_named(
    run: RunDir, save: Save, tmp_path: Path
) -> None:
    save(1)
    for target, said in ((tmp_path / "gone", "incomplete"), (run.checkpoint(1), "do not belong to one save")):
        link = run.checkpoint(2)
        link.symlink_to(target)
        notes: list[Diagnostic] = []
        assert find_checkpoint("latest", run, notes) == run.checkpoint(1)
        assert notes[0].code == "resume.skipped_incomplete" and said in notes[0].what
        link.unlink()


def test_a_file_inside_replaced_by_a_link_is_refused(run: RunDir, save: Save, tmp_path: Path) -> None:
    path = save(1)
    for name in ("manifest.json", "state.json", "hf/config.json"):
        (path / name).rename(tmp_path / "x")
        (path / name).symlink_to(tmp_path / "x")
        refused(path, run)
        (path / name).unlink()
        (tmp_path / "x").rename(path / name)


def test_links_are_never_pruned_and_a_save_takes_their_place(run: RunDir, save: Save, tmp_path: Path) -> None:
    save(1).rename(tmp_path / "away")
    run.checkpoint(1).symlink_to(tmp_path / "away")
    save(2, keep=1)
    save(3, keep=1)
    assert [f.name for f in scan(run.checkpoints)] == ["step-00000001", "step-00000003"]
    save(1, keep=1)
    assert not run.checkpoint(1).is_symlink() and (tmp_path / "away" / "manifest.json").is_file()
    assert [p for p in run.checkpoints.iterdir() if p.name.startswith(".")] == []
